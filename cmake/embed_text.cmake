# Writes a C++ file that holds text files, so that the program needs none of them beside it: src/api/embedded.h.
# A script: cmake -DROOT=src/api -DFILES=a.json,b/c.html -DOUTPUT=file.cc -P this.
# A line "@b/d.js@" of a file stands for the text of ROOT/b/d.js.
cmake_minimum_required(VERSION 3.25)
string(REPLACE "," ";" FILES "${FILES}")
set(text "// Made by cmake/embed_text.cmake.\n#include \"api/embedded.h\"\n\nnamespace tandem::api {\n\n")
string(APPEND text "std::string_view embedded_file(std::string_view name) {\n")
foreach(name IN LISTS FILES)
  file(READ "${ROOT}/${name}" content)
  string(REGEX MATCHALL "@[a-z_/]+\\.(css|js)@\n" parts "${content}")
  foreach(line IN LISTS parts)
    string(REGEX REPLACE "@(.*)@\n" "\\1" part "${line}")
    file(READ "${ROOT}/${part}" part_text)
    string(REPLACE "${line}" "${part_text}" content "${content}")
  endforeach()
  string(APPEND text "  if (name == \"${name}\") return R\"tandem(${content})tandem\";\n")
endforeach()
string(APPEND text "  return {};\n}\n\n}  // namespace tandem::api\n")
file(WRITE "${OUTPUT}" "${text}")
