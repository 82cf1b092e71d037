# Compiler settings and the two functions that every room uses.

set(TANDEM_ROOMS base device quant ops model cache forward cluster media text chat draft engine
  grammar eval api http cli)

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(GTest REQUIRED)
find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=time_macros ${CCACHE})
endif()
# The compiler reads a room's files eight at a time: most of what a file costs is the headers' text and templates, which
# eight then share (a quarter of the time for the whole tree). So a name in an anonymous namespace is one of its room's.
set(TANDEM_UNITY_FILES 8 CACHE STRING "files that are compiled as one; 0: each by itself, as clang-tidy wants them")

add_library(tandem_settings INTERFACE)
target_include_directories(tandem_settings INTERFACE ${CMAKE_SOURCE_DIR}/src)
# -ffp-contract=off: the compiler must never fuse what the source did not, or two targets would differ in bits.
target_compile_options(tandem_settings INTERFACE -Wall -Wextra -Wpedantic -Wconversion -Wno-sign-conversion
  -Werror -ffp-contract=off -fno-math-errno)
if(TANDEM_UNITY_FILES GREATER 1 AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # Of other files' names and of anonymous namespaces outside the main file; the lint build looks at each file alone.
  target_compile_options(tandem_settings INTERFACE -Wshadow=local -Wno-subobject-linkage)
else()
  target_compile_options(tandem_settings INTERFACE -Wshadow)
endif()
target_compile_definitions(tandem_settings INTERFACE TANDEM_VERSION="${PROJECT_VERSION}")
target_link_libraries(tandem_settings INTERFACE fmt::fmt Threads::Threads)
if(TANDEM_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 raises false alarms about std::string and std::vector in code that the sanitizers have changed; the release
  # build has these warnings.
  target_compile_options(tandem_settings INTERFACE -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread -Wno-restrict
    -Wno-maybe-uninitialized)
endif()
if(TANDEM_SANITIZE STREQUAL "address")
  target_compile_options(tandem_settings INTERFACE -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -O1 -g -D_GLIBCXX_ASSERTIONS)
  target_link_options(tandem_settings INTERFACE -fsanitize=address,undefined)
elseif(TANDEM_SANITIZE STREQUAL "thread")
  target_compile_options(tandem_settings INTERFACE -fsanitize=thread -O1 -g)
  target_link_options(tandem_settings INTERFACE -fsanitize=thread)
elseif(TANDEM_SANITIZE)
  message(FATAL_ERROR "TANDEM_SANITIZE is '${TANDEM_SANITIZE}', expected empty, 'address' or 'thread'")
endif()
if(TANDEM_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "TANDEM_FUZZ needs clang, found ${CMAKE_CXX_COMPILER_ID} (use the preset fuzz)")
  endif()
  target_compile_options(tandem_settings INTERFACE -fsanitize=fuzzer-no-link)
endif()

# tandem_unity(<target>): its files are compiled TANDEM_UNITY_FILES at a time; those with options of their own are not.
function(tandem_unity target)
  if(TANDEM_UNITY_FILES GREATER 1)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${TANDEM_UNITY_FILES})
  endif()
endfunction()

# tandem_room(<name> [LIBRARIES extra...]): one static library of src/<name>/**.cc and, from the files that end in
# _test.cc, one test program <name>_test. The library links against every room below <name>.
function(tandem_room name)
  cmake_parse_arguments(ARG "" "" "LIBRARIES" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$|/main\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  list(FILTER tests EXCLUDE REGEX "_gpu_test\\.cc$")  # tests/gpu has them
  if(NOT sources)
    return()
  endif()
  set(below)
  foreach(room IN LISTS TANDEM_ROOMS)
    if(room STREQUAL name)
      break()
    endif()
    if(TARGET tandem_${room})
      list(PREPEND below tandem_${room})
    endif()
  endforeach()
  add_library(tandem_${name} STATIC ${sources})
  target_link_libraries(tandem_${name} PUBLIC ${below} tandem_settings PRIVATE ${ARG_LIBRARIES})
  tandem_unity(tandem_${name})
  if(tests)
    tandem_test(${name}_test ${tests} ROOM ${name})
    target_link_libraries(${name}_test PRIVATE ${ARG_LIBRARIES})
  endif()
endfunction()

# tandem_test(<target> <sources>... ROOM <room>): a GoogleTest program linked with the room and all rooms below it. Each
# source has a namespace of its own, named as the file is.
# Tests find data through TANDEM_SOURCE_DIR (the source tree).
function(tandem_test target)
  cmake_parse_arguments(ARG "" "ROOM" "" ${ARGN})
  add_executable(${target} ${ARG_UNPARSED_ARGUMENTS})
  target_link_libraries(${target} PRIVATE tandem_${ARG_ROOM} GTest::gtest GTest::gtest_main)
  target_compile_definitions(${target} PRIVATE TANDEM_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  # The tests rely on these three being there.
  target_compile_options(${target} PRIVATE "SHELL:-include gtest/gtest.h" "SHELL:-include string" "SHELL:-include vector"
    $<$<CONFIG:Release>:-O1>)  # what a test itself computes is little, and there are many
  tandem_unity(${target})
  include(GoogleTest)
  gtest_discover_tests(${target} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 600)
endfunction()

# tandem_exl3_level_options(<folder>): the EXL3 encoder's trellis search is built for every level of its architecture,
# exl3_viterbi.cc picks one at run time. For the targets of the calling folder.
function(tandem_exl3_level_options folder)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    set_source_files_properties(${folder}/exl3_viterbi_avx2.cc PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma")
    set(avx512 -mavx512f -mfma -mprefer-vector-width=512)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # GCC's own AVX-512 headers read a deliberately undefined register (GCC bug 105593).
      list(APPEND avx512 -Wno-maybe-uninitialized -Wno-uninitialized)
    endif()
    set_source_files_properties(${folder}/exl3_viterbi_avx512.cc PROPERTIES COMPILE_OPTIONS "${avx512}")
  endif()
endfunction()
