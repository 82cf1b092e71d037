// How an operation finds a stream's rows in the paged token pool: a page table in front of one plane of the pool.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quant/cache_records.h"

namespace tandem::ops {

constexpr int64_t page_rows = 256;  // token rows of a page, at most

// How the values of a cached row are stored: rounded once, when they are stored, by the values of the row alone.
using CacheElement = quant::RecordKind;
// Whether values are stored one by one, so that a row may be stored in pieces.
constexpr bool is_plain(CacheElement element) { return element == CacheElement::f32 || element == CacheElement::bf16; }
constexpr int64_t element_bytes(CacheElement plain) { return plain == CacheElement::bf16 ? 2 : 4; }

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
  std::byte* scales = nullptr;  // the records' second plane, if they have one
  float outer_scale = 0.0f;     // latent_nvfp4: the layer's calibrated scale; 0: each row's own

  quant::CacheRecord record() const { return quant::cache_record(element, width); }
  int64_t row_bytes() const { return record().plane_bytes[0]; }  // in `data`
  bool holds(int64_t index) const { return index / rows_of_page % ranks == rank; }
  // Number of the row among all rows of the plane.
  int64_t place(int64_t index) const { return page_table[index / rows_of_page] * rows_of_page + index % rows_of_page; }
  std::byte* row(int64_t index) const { return data + place(index) * row_bytes(); }
  void store(int64_t index, const float* values) const;                                // values [width]
  void store(int64_t index, int64_t first, int64_t count, const float* values) const;  // columns; plain elements only
  void load(int64_t index, float* values) const;
  void load_place(int64_t place, float* values) const;
};

}  // namespace tandem::ops
