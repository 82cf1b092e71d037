// The pool in device memory: every plane, page and row has its own bytes, and pages are copied as TokenPool copies
// them.
#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "cache/gpu_pool.h"
#include "cache/token_pool.h"
#include "device/kernel_dimensions.h"
#include "device/test_gpu.h"

namespace tandem::cache::gpu_pool_gpu_test {
namespace {

using device::from_gpu;
using model::CacheType;

constexpr int64_t planes = 3, pages = 5, page_rows = 16, kpool = 4;

model::Shape shape_of(int64_t latent, int64_t key) {
  model::Shape shape = model::read_shape(fmt::format("{}/models/nano", TANDEM_SOURCE_DIR));
  shape.kv_lora_rank = latent;
  shape.index_head_dim = key;
  shape.index_kpool = kpool;
  return shape;
}

class GpuPoolTest : public ::testing::TestWithParam<CacheType> {};

TEST_P(GpuPoolTest, IsTheTokenPool) {
  device::Gpu& gpu = device::gpu_under_test();
  for (const int64_t latent : {48, 72}) {
    const model::Shape shape = shape_of(latent, 32);
    TokenPool host(shape, planes, pages, page_rows, GetParam());
    const GpuPool pool(gpu, device::model_defines({}), shape, planes, pages, page_rows, GetParam());
    EXPECT_EQ(pool.pages(), pages);
    const std::vector<int32_t> table{0, 1, 2, 3, 4};

    // Each of the four planes of every layer, whole.
    struct Piece {
      std::byte* host;
      uint8_t* device;
      int64_t bytes;
    };
    std::vector<Piece> pieces;
    for (int64_t layer = 0; layer < planes; ++layer) {
      for (const auto& [cpu, view] : {std::pair{host.latent(layer, table.data()), pool.latent(layer)},
                                      std::pair{host.pooled(layer, table.data()), pool.pooled(layer)}}) {
        EXPECT_EQ(view.kind, static_cast<int32_t>(cpu.element));
        EXPECT_EQ(view.width, cpu.width);
        EXPECT_EQ(view.row_bytes, cpu.row_bytes());
        EXPECT_EQ(view.rows_of_page, cpu.rows_of_page);
        EXPECT_EQ(view.outer_scale, 0.0f);
        EXPECT_EQ(view.rank, 0);
        EXPECT_EQ(view.ranks, 1);
        EXPECT_EQ(view.scales != nullptr, cpu.scales != nullptr);
        const int64_t rows = pages * cpu.rows_of_page;
        pieces.push_back({cpu.data, view.data, rows * cpu.row_bytes()});
        if (cpu.scales != nullptr) pieces.push_back({cpu.scales, view.scales, rows * cpu.record().plane_bytes[1]});
      }
    }
    uint32_t number = 0;
    for (const Piece& piece : pieces) {
      for (int64_t i = 0; i < piece.bytes; ++i) piece.host[i] = static_cast<std::byte>((number++ * 2654435761u) >> 24);
      gpu.upload(piece.device, piece.host, piece.bytes);
    }
    for (const auto& [from, to, rows] :
         {std::array<int64_t, 3>{1, 3, 16}, {3, 4, 5}, {2, 1, 1}, {4, 2, 0}, {1, 4, 12}}) {
      host.copy_page(from, to, rows);
      pool.copy_page(from, to, rows);
    }
    for (size_t i = 0; i < pieces.size(); ++i) {
      const std::vector<std::byte> got = from_gpu<std::byte>(pieces[i].device, pieces[i].bytes);
      EXPECT_EQ(std::memcmp(got.data(), pieces[i].host, got.size()), 0) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, GpuPoolTest, ::testing::ValuesIn(model::all_cache_types),
                         [](const auto& at) { return std::string(model::name_of(at.param)); });

TEST(GpuPoolErrors, AreTheTokenPools) {
  device::Gpu& gpu = device::gpu_under_test();
  const auto make = [&](int64_t rows, std::vector<float> scales) {
    return GpuPool(gpu, device::model_defines({}), shape_of(48, 32), planes, pages, rows, CacheType::nvfp4,
                   std::move(scales));
  };
  EXPECT_THROW(make(18, {}), Error);
  EXPECT_THROW(make(512, {}), Error);
  EXPECT_THROW(make(page_rows, {1.0f, 2.0f}), Error);
  EXPECT_EQ(make(page_rows, {1.0f, 2.0f, 3.0f}).latent(1).outer_scale, 2.0f);
}

}  // namespace
}  // namespace tandem::cache::gpu_pool_gpu_test
