// One block of a kernel: its threads as fibers that take turns at barriers, and what warps exchange.
#include "fibers.h"

#include <algorithm>
#include <boost/context/fiber.hpp>
#include <boost/context/pooled_fixedsize_stack.hpp>
#include <exception>
#include <stdexcept>
#include <utility>

#include "kernel_emulated.h"

namespace tandem::emulator {

thread_local Thread* running = nullptr;

namespace {

namespace context = boost::context;

constexpr uint32_t warp_size = 32;
constexpr size_t stack_bytes = size_t{256} << 10;

struct Warp {
  alignas(64) unsigned char values[2][warp_size][64];
  uint32_t alive = 0, arrived = 0;
};

struct Fiber {
  Thread thread;
  uint32_t number = 0, warp = 0;
  uint32_t exchanges = 0;  // which of the two buffers is next
  enum class State { ready, at_block, at_warp, done } state = State::ready;
  context::fiber continuation, scheduler;
};

struct Block {
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  uint32_t alive = 0, arrived = 0;
  std::exception_ptr failure;
};

thread_local Block* block = nullptr;
thread_local Fiber* fiber = nullptr;

void yield() { fiber->scheduler = std::move(fiber->scheduler).resume(); }

void release_block() {
  for (Fiber& other : block->fibers) {
    if (other.state == Fiber::State::at_block) other.state = Fiber::State::ready;
  }
  block->arrived = 0;
}

void release_warp(uint32_t number) {
  const size_t first = size_t{number} * warp_size;
  for (size_t i = first; i < std::min(first + warp_size, block->fibers.size()); ++i) {
    if (block->fibers[i].state == Fiber::State::at_warp) block->fibers[i].state = Fiber::State::ready;
  }
  block->warps[number].arrived = 0;
}

void finish() {
  Warp& warp = block->warps[fiber->warp];
  fiber->state = Fiber::State::done;
  --block->alive;
  --warp.alive;
  if (block->alive > 0 && block->arrived == block->alive) release_block();
  if (warp.alive > 0 && warp.arrived == warp.alive) release_warp(fiber->warp);
}

}  // namespace

void sync_block() {
  Fiber* self = fiber;
  self->state = Fiber::State::at_block;
  if (++block->arrived == block->alive) release_block();
  while (self->state != Fiber::State::ready) yield();
}

void sync_warp() {
  Fiber* self = fiber;
  Warp& warp = block->warps[self->warp];
  self->state = Fiber::State::at_warp;
  if (++warp.arrived == warp.alive) release_warp(self->warp);
  while (self->state != Fiber::State::ready) yield();
}

WarpView exchange(const void* mine, uint32_t bytes) {
  Fiber* self = fiber;
  Warp& warp = block->warps[self->warp];
  if (warp.alive != warp_size) throw std::logic_error("a warp operation in a warp whose other lanes have ended");
  const uint32_t buffer = self->exchanges++ % 2, lane = self->number % warp_size;
  std::memcpy(warp.values[buffer][lane], mine, bytes);
  sync_warp();
  return {warp.values[buffer][0], lane};
}

void run_block(Body body, const void* args, const Dimensions& at, unsigned char* shared, std::mt19937_64& random) {
  static thread_local context::pooled_fixedsize_stack stacks(stack_bytes);
  Block mine;
  mine.fibers.resize(at.threads);
  mine.warps.resize((at.threads + warp_size - 1) / warp_size);
  mine.alive = at.threads;
  block = &mine;
  std::vector<uint32_t> order(at.threads);
  for (uint32_t i = 0; i < at.threads; ++i) {
    Fiber& one = mine.fibers[i];
    order[i] = i;
    one.number = i;
    one.warp = i / warp_size;
    ++mine.warps[one.warp].alive;
    one.thread = {{i, 0, 0},
                  {at.block[0], at.block[1], at.block[2]},
                  {at.threads, 1, 1},
                  {at.grid[0], at.grid[1], at.grid[2]},
                  shared};
    one.continuation =
        context::fiber(std::allocator_arg, stacks, [&one, &mine, body, args](context::fiber&& scheduler) {
          one.scheduler = std::move(scheduler);
          try {
            body(args);
          } catch (const context::detail::forced_unwind&) {
            throw;
          } catch (...) {
            if (!mine.failure) mine.failure = std::current_exception();
          }
          finish();
          return std::move(one.scheduler);
        });
  }
  while (mine.alive > 0 && !mine.failure) {
    std::shuffle(order.begin(), order.end(), random);
    bool any = false;
    for (const uint32_t i : order) {
      Fiber& one = mine.fibers[i];
      if (one.state != Fiber::State::ready || mine.failure) continue;
      any = true;
      fiber = &one;
      running = &one.thread;
      one.continuation = std::move(one.continuation).resume();
    }
    if (!any && mine.alive > 0 && !mine.failure) {
      mine.failure = std::make_exception_ptr(std::logic_error("threads of a block wait at different barriers"));
    }
  }
  running = nullptr;
  fiber = nullptr;
  mine.fibers.clear();  // unwinds those that did not end
  block = nullptr;
  if (mine.failure) std::rethrow_exception(mine.failure);
}

}  // namespace tandem::emulator
