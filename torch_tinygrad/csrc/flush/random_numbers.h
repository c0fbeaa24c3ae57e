// Numbers of the stream that lower/random.py defines: words are a function of a key and a counter, and numbers of words.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/TensorBody.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace tiny {

// Words that are made at once.
constexpr int64_t kBlock = 256;

// Threefry 2x32 of 20 rounds, on counters from `first` on.
void threefry(uint64_t key, uint64_t first, uint64_t* words);

struct Stream {
  uint64_t key, offset;
  uint64_t used = 0;

  uint64_t take(int64_t count) { return offset + std::exchange(used, used + static_cast<uint64_t>(count)); }
  uint64_t word(uint64_t counter) const;
  Stream branch() { return {word(take(1)), 0}; }
};

// Calls f(index, word) for each of `count` elements, whose counters begin at `first`.
template <class F>
void each_word(const Stream& stream, uint64_t first, int64_t count, const F& f) {
  at::parallel_for(0, (count + kBlock - 1) / kBlock, 32, [&](int64_t begin, int64_t end) {
    uint64_t words[kBlock];
    for (int64_t block = begin; block < end; block++) {
      threefry(stream.key, first + static_cast<uint64_t>(block * kBlock), words);
      const int64_t last = std::min(count, (block + 1) * kBlock);
      for (int64_t i = block * kBlock; i < last; i++) f(i, words[i - block * kBlock]);
    }
  });
}

inline uint32_t lower_half(uint64_t word) { return static_cast<uint32_t>(word); }

template <class T>
T fraction(uint64_t word, int digits) {
  if constexpr (std::is_same_v<T, double>) return static_cast<double>(word >> (64 - digits)) * std::ldexp(1.0, -digits);
  return static_cast<float>(lower_half(word) >> (32 - digits)) * std::ldexp(1.0f, -digits);
}

// In [0, 1), with as many digits as the dtype holds.
template <class T>
T unit(uint64_t word, at::ScalarType dtype) {
  if constexpr (std::is_same_v<T, double>) return fraction<double>(word, 53);
  return fraction<float>(word, dtype == at::kHalf ? 11 : dtype == at::kBFloat16 ? 8 : 24);
}

// In (0, 1).
template <class T>
T open_unit(uint64_t word) {
  if constexpr (std::is_same_v<T, double>) return fraction<double>(word, 52) + 0x1p-53;
  return fraction<float>(word, 23) + 0x1p-24f;
}

template <class T>
T sin_pi(T x) {
  const T folded = x > T(0.5) ? T(1) - x : x < T(-0.5) ? T(-1) - x : x;
  return static_cast<T>(std::sin(static_cast<double>(folded) * M_PI));
}

// Fills a contiguous tensor of T with f(word).
template <class T, class F>
void fill(Stream& stream, const at::Tensor& values, const F& f) {
  T* const out = values.mutable_data_ptr<T>();
  each_word(stream, stream.take(values.numel()), values.numel(), [&](int64_t i, uint64_t word) { out[i] = f(word); });
}

template <class T>
void gaussian(Stream& stream, const at::Tensor& values) {
  if constexpr (std::is_same_v<T, double>) {
    fill<double>(stream, values, [](uint64_t word) { return std::sqrt(-2.0 * std::log(open_unit<double>(word))); });
    double* const out = values.mutable_data_ptr<double>();
    each_word(stream, stream.take(values.numel()), values.numel(),
              [&](int64_t i, uint64_t word) { out[i] *= sin_pi(unit<double>(word, at::kDouble) * 2.0 - 1.0); });
  } else {
    fill<float>(stream, values, [](uint64_t word) {
      const float radius = open_unit<float>(word), angle = fraction<float>(word >> 32, 24);
      return std::sqrt(-2.0f * std::log(radius)) * sin_pi(angle * 2.0f - 1.0f);
    });
  }
}

// Uniform in [low, low + span); a span of 0 stands for 2**64.
void integers(Stream& stream, const at::Tensor& values, int64_t low, uint64_t span);

// One more than the largest number that `random_` draws without bounds.
uint64_t every_value(at::ScalarType dtype);

// The numbers from 0 on, in an order of the stream's.
void permutation(Stream& stream, const at::Tensor& values);

}  // namespace tiny
