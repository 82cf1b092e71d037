// Ranks that are threads of one process, each with a GPU of its own or a queue of its own on a shared one, exchange
// device memory.
#pragma once

#include <cstdint>

#include "cluster/in_process_exchange.h"
#include "device/gpu.h"
#include "device/gpu_exchange.h"

namespace tandem::cluster {

// By way of host memory: works wherever a device::Exchange does, between hosts too, and waits for the queue each time.
class StagedGpuExchange final : public device::GpuExchange {
 public:
  // `max_bytes`: what a rank gives at most at a time. Both must outlive it.
  StagedGpuExchange(device::Gpu& gpu, device::Exchange& exchange, int64_t max_bytes);

  int rank() const override { return exchange_.rank(); }
  int ranks() const override { return exchange_.ranks(); }
  void all_gather(std::byte* all, int64_t bytes) override;
  bool can_be_captured() const override { return false; }

 private:
  device::Gpu& gpu_;
  device::Exchange& exchange_;
  device::PinnedMemory host_;  // [ranks, max_bytes]
};

// From GPU to GPU: the hosts meet to say what lies where, then each queue waits for the other's and copies. Nothing
// waits for a queue, so the hosts run ahead of their GPUs.
class DirectGpuExchange final : public device::GpuExchange {
 public:
  // What a rank gives the hub at a time.
  static constexpr int64_t hub_values = 8;

  // `gpu`: on the same GPU as the other ranks', or on one of the same host. Both must outlive it.
  DirectGpuExchange(device::Gpu& gpu, InProcessHub& hub, int rank) : gpu_(gpu), hub_(hub), rank_(rank) {}

  int rank() const override { return rank_; }
  int ranks() const override { return hub_.ranks(); }
  void all_gather(std::byte* all, int64_t bytes) override;
  bool can_be_captured() const override { return false; }  // the hosts meet

 private:
  device::Gpu& gpu_;
  InProcessHub& hub_;
  int rank_;
};

}  // namespace tandem::cluster
