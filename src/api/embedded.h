// Files of this folder that are served as they are or made into what is served; the build puts their text into the
// program (cmake/embed_text.cmake).
#pragma once

#include <string_view>

namespace tandem::api {

// By its path from this folder ("page/index.html"); empty for a name that src/api/CMakeLists.txt does not list.
std::string_view embedded_file(std::string_view name);

}  // namespace tandem::api
