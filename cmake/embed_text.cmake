# Writes a C++ file that holds text files, so that the program needs none of them beside it: src/api/embedded.h.
# A script: cmake -DROOT=src/api -DFILES=a.json,b/c.html -DOUTPUT=file.cc -P this.
cmake_minimum_required(VERSION 3.25)
string(REPLACE "," ";" FILES "${FILES}")
set(text "// Made by cmake/embed_text.cmake.\n#include \"api/embedded.h\"\n\nnamespace tandem::api {\n\n")
string(APPEND text "std::string_view embedded_file(std::string_view name) {\n")
foreach(name IN LISTS FILES)
  file(READ "${ROOT}/${name}" content)
  string(APPEND text "  if (name == \"${name}\") return R\"tandem(${content})tandem\";\n")
endforeach()
string(APPEND text "  return {};\n}\n\n}  // namespace tandem::api\n")
file(WRITE "${OUTPUT}" "${text}")
