// Device memory between ranks: by way of host memory, or from queue to queue.
#include "cluster/gpu_exchange.h"

#include <fmt/format.h>

#include <array>
#include <span>

#include "base/error.h"

namespace tandem::cluster {

StagedGpuExchange::StagedGpuExchange(device::Gpu& gpu, device::Exchange& exchange, int64_t max_bytes)
    : gpu_(gpu),
      exchange_(exchange),
      host_(gpu.allocate_pinned(exchange.ranks() * max_bytes, "exchange between ranks")) {}

void StagedGpuExchange::all_gather(std::byte* all, int64_t bytes) {
  if (bytes % 4 != 0 || bytes * ranks() > host_.size())
    throw Error(ErrorCode::internal, "exchange between ranks", fmt::format("{} bytes", bytes),
                fmt::format("a multiple of 4, at most {}", host_.size() / ranks()));
  const int64_t own = rank() * bytes;
  gpu_.download(host_.data() + own, all + own, bytes);
  gpu_.synchronize();  // also: what the last exchange uploaded has been read
  const auto count = static_cast<size_t>(bytes / 4);
  exchange_.all_gather({host_.as<float>() + own / 4, count}, {host_.as<float>(), count * static_cast<size_t>(ranks())});
  for (int64_t other = 0; other < ranks(); ++other) {
    if (other != rank()) gpu_.upload(all + other * bytes, host_.data() + other * bytes, bytes);
  }
}

namespace {

constexpr size_t most_ranks = 2;

// What a rank says of its piece: when its queue has passed the mark, the bytes are there.
struct Offer {
  device::Gpu* gpu;
  const std::byte* data;
  int64_t bytes;
  int32_t mark;
};
static_assert(sizeof(Offer) <= DirectGpuExchange::hub_values * 4);

}  // namespace

void DirectGpuExchange::all_gather(std::byte* all, int64_t bytes) {
  std::array<Offer, most_ranks> offers{};
  if (ranks() > static_cast<int>(most_ranks))
    throw Error(ErrorCode::internal, "exchange between ranks", fmt::format("{} ranks", ranks()), "at most 2");
  const Offer mine{&gpu_, all + rank() * bytes, bytes, gpu_.mark()};
  hub_.all_gather_value(rank(), mine, std::span(offers).first(static_cast<size_t>(ranks())));
  for (int other = 0; other < ranks(); ++other) {
    if (other == rank()) continue;
    const Offer& offer = offers[static_cast<size_t>(other)];
    if (offer.bytes != bytes)
      throw Error(ErrorCode::internal, "exchange between ranks",
                  fmt::format("rank {} gave {} bytes", other, offer.bytes), fmt::format("{}", bytes));
    gpu_.wait_for(*offer.gpu, offer.mark);
    gpu_.copy(all + other * bytes, offer.data, bytes);
  }
}

}  // namespace tandem::cluster
