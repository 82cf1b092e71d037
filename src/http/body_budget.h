// How much memory the bodies of all requests take together, from their first byte until they have been parsed.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

namespace tandem::http {

class BodyBudget {
 public:
  explicit BodyBudget(size_t limit) : used_(std::make_shared<std::atomic<size_t>>(0)), limit_(limit) {}

  // What one body takes of the budget; gives it back when destroyed, from any thread.
  class Share {
   public:
    explicit Share(std::shared_ptr<std::atomic<size_t>> used, size_t limit) : used_(std::move(used)), limit_(limit) {}
    ~Share() { *used_ -= bytes_; }
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;

    // False, and nothing taken, if the budget does not hold a body of `bytes` in all.
    bool grow_to(size_t bytes) {
      if (bytes <= bytes_) return true;
      if ((*used_ += bytes - bytes_) > limit_) {
        *used_ -= bytes - bytes_;
        return false;
      }
      bytes_ = bytes;
      return true;
    }

   private:
    std::shared_ptr<std::atomic<size_t>> used_;
    size_t limit_;
    size_t bytes_ = 0;
  };

  std::shared_ptr<Share> share() const { return std::make_shared<Share>(used_, limit_); }

 private:
  std::shared_ptr<std::atomic<size_t>> used_;
  size_t limit_;
};

}  // namespace tandem::http
