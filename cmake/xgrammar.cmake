# xgrammar, the engine behind structured output, as one static library of ours: `./dev` fetches its source archive into
# build/third_party. Its own CMake files set global flags and want Python, so they are not used. Without the archive the
# program is built all the same and answers requests for structured output with an error.
set(TANDEM_XGRAMMAR_VERSION 0.2.8)
set(folder ${CMAKE_SOURCE_DIR}/build/third_party/xgrammar-${TANDEM_XGRAMMAR_VERSION})
# CONFIGURE_DEPENDS: an archive that arrives later is noticed by the next build.
file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${folder}/cpp/*.cc)
list(FILTER sources EXCLUDE REGEX "/cpp/tvm_ffi/")
if(NOT sources)
  message(STATUS "no xgrammar in build/third_party: without structured output (./dev build fetches it)")
  return()
endif()
add_library(tandem_xgrammar STATIC ${sources})
target_compile_features(tandem_xgrammar PUBLIC cxx_std_17)
target_include_directories(tandem_xgrammar SYSTEM PUBLIC ${folder}/include ${folder}/3rdparty/dlpack/include
  PRIVATE ${folder}/3rdparty/picojson)
target_compile_definitions(tandem_xgrammar PRIVATE XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0
  XGRAMMAR_LOG_CUSTOMIZE=1)  # src/grammar/matcher.cc has the two functions
# Optimised in every build, since the debug ones would otherwise spend their time in it, and most where masks are made;
# warnings are not ours.
target_compile_options(tandem_xgrammar PRIVATE -w -O1 -g0)
set_source_files_properties(${folder}/cpp/grammar_matcher.cc ${folder}/cpp/earley_parser.cc PROPERTIES COMPILE_OPTIONS -O2)
tandem_unity(tandem_xgrammar)
target_link_libraries(tandem_xgrammar PRIVATE Threads::Threads)
if(TANDEM_SANITIZE STREQUAL "address")
  target_compile_options(tandem_xgrammar PRIVATE -fsanitize=address,undefined -fno-sanitize-recover=all)
elseif(TANDEM_SANITIZE STREQUAL "thread")
  target_compile_options(tandem_xgrammar PRIVATE -fsanitize=thread)
endif()
if(TANDEM_FUZZ)
  target_compile_options(tandem_xgrammar PRIVATE -fsanitize=fuzzer-no-link)
endif()
