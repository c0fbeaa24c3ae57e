// A parallel loop of OpenMP ends when every helper has been at its barrier, whether there was anything left to do for it or
// not: where other processes use the cores, that takes until the system lets each of them run. Here a piece belongs to
// whichever thread takes it, the caller too, and it waits for pieces that were begun, not for threads.
#include "programs/workers.h"

#include <sched.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

namespace tiny {
namespace {

using Clock = std::chrono::steady_clock;

// Kernels follow each other within a few microseconds: a thread that has nothing to do looks out for so long for the next,
// then sleeps. Waking it takes longer than most kernels.
constexpr std::chrono::microseconds kLookOut{100};
// A helper that takes so much longer for its last piece than the caller for all of its own has lost its core to others. Then
// the caller does without helpers for so many times as long as it waited.
constexpr std::chrono::microseconds kLate{200};
constexpr int kAlone = 32;

struct Work {
  const std::function<void(int64_t)>* run;
  int64_t pieces;
  std::atomic<int> seats;  // for helpers
  std::atomic<int64_t> next{0}, done{0};

  // Whoever takes a piece is waited for, so `run` lives as long as it is called.
  void take_part() {
    for (int64_t piece = next++; piece < pieces; piece = next++) {
      (*run)(piece);
      done++;
    }
  }
};

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// What this thread has had of its core.
std::chrono::nanoseconds worked() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

class Workers {
 public:
  void share_out(const std::shared_ptr<Work>& work, int helpers) {
    if (Clock::now() >= alone_until_) ask_for_help(work, helpers);
    const auto before = worked();
    work->take_part();
    const auto own = worked() - before;
    const auto start = Clock::now();
    for (int looks = 0; work->done < work->pieces; looks++) looks < kLooks ? pause() : static_cast<void>(sched_yield());
    const auto end = Clock::now();
    if (end - start > own + kLate) alone_until_ = end + kAlone * (end - start);
  }

 private:
  static constexpr int kLooks = 1000;  // at a helper's last piece, before its core may be this one

  void ask_for_help(const std::shared_ptr<Work>& work, int helpers) {
    for (; helpers_ < helpers; helpers_++) std::thread([this] { help(); }).detach();
    bool asleep;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      work_ = work;
      number_++;
      asleep = asleep_ > 0;
    }
    if (asleep) wake_.notify_all();
  }

  void help() {
    for (uint64_t seen = 0;;) {
      const auto end = Clock::now() + kLookOut;
      while (number_ == seen && Clock::now() < end) pause();
      std::shared_ptr<Work> work;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        asleep_++;
        wake_.wait(lock, [&] { return number_ != seen; });
        asleep_--;
        seen = number_;
        work = work_;
      }
      if (work->seats-- > 0) work->take_part();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::shared_ptr<Work> work_;
  std::atomic<uint64_t> number_{0};  // of the work
  int asleep_ = 0, helpers_ = 0;
  Clock::time_point alone_until_;
};

}  // namespace

void share_out(int64_t pieces, int threads, const std::function<void(int64_t)>& run) {
  const int helpers = static_cast<int>(std::min<int64_t>(threads, pieces)) - 1;
  if (helpers <= 0) {
    for (int64_t piece = 0; piece < pieces; piece++) run(piece);
    return;
  }
  static auto* workers = new Workers;  // its threads end with the process
  auto work = std::make_shared<Work>();
  work->run = &run, work->pieces = pieces, work->seats = helpers;
  workers->share_out(work, helpers);
}

}  // namespace tiny
