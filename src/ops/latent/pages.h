// How an operation finds a stream's rows in the paged token pool: a page table in front of one plane of the pool.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tandem::ops {

constexpr int64_t page_rows = 256;  // token rows of a page, at most

// How the values of a cached row are stored.
enum class CacheElement : uint8_t {
  f32,
  bf16,  // rounded to nearest, ties to even, when stored
};
constexpr int64_t element_bytes(CacheElement element) { return element == CacheElement::bf16 ? 2 : 4; }

// One plane: [pages, rows_of_page, width]. A plane of pooled index keys has 1 / index_kpool of the token rows of a
// page. Under decode-context parallelism a rank's plane holds the rows of every ranks-th entry of the page table, and
// only those may be asked for.
struct PagedPlane {
  std::byte* data = nullptr;
  const int32_t* page_table = nullptr;  // of the stream; entry i holds rows rows_of_page·i …
  int64_t rows_of_page = page_rows;
  int64_t width = 0;
  CacheElement element = CacheElement::f32;
  int32_t rank = 0, ranks = 1;  // entry i is a page of this rank's pool if i mod ranks = rank

  int64_t row_bytes() const { return width * element_bytes(element); }
  bool holds(int64_t index) const { return index / rows_of_page % ranks == rank; }
  std::byte* row(int64_t index) const {
    return data + (page_table[index / rows_of_page] * rows_of_page + index % rows_of_page) * row_bytes();
  }
  void store(int64_t index, const float* values) const { store(index, 0, width, values); }  // values [width]
  void store(int64_t index, int64_t first, int64_t count, const float* values) const;       // columns from `first`
  void load(int64_t index, float* values) const;
};

}  // namespace tandem::ops
