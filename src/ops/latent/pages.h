// How an operation finds a stream's rows in the paged token pool: a page table in front of one plane of the pool.
#pragma once

#include <cstdint>

namespace tandem::ops {

constexpr int64_t page_rows = 256;  // token rows of a page

// One plane: [pages, rows_of_page, width] fp32. A plane of pooled index keys has page_rows / index_kpool rows a page.
struct PagedPlane {
  float* data = nullptr;
  const int32_t* page_table = nullptr;  // of the stream; entry i holds token rows 256·i …
  int64_t rows_of_page = page_rows;
  int64_t width = 0;

  float* row(int64_t index) const {
    return data + (page_table[index / rows_of_page] * rows_of_page + index % rows_of_page) * width;
  }
};

}  // namespace tandem::ops
