#include "flush/random_numbers.h"

#include <numeric>
#include <vector>

namespace tiny {
namespace {

using at::Tensor;

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define TINY_VECTORISED __attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3")))
#else
#define TINY_VECTORISED
#endif

constexpr int64_t kRanked = 2048, kRounds = 8;

uint32_t mixed(uint32_t x, uint64_t key) {
  x = (x + static_cast<uint32_t>(key)) * 0x9E3779B1u;
  x = (x ^ (x >> 15) ^ static_cast<uint32_t>(key >> 32)) * 0x85EBCA77u;
  return (x ^ (x >> 13)) * 0xC2B2AE3Du;
}

uint32_t feistel(uint32_t x, int bits, const uint64_t* keys, bool inverse) {
  const int low_bits = bits / 2;
  uint32_t low = x & ((1u << low_bits) - 1), high = x >> low_bits;
  for (int64_t step = 0; step < kRounds; step++) {
    const int64_t i = inverse ? kRounds - 1 - step : step;
    if (i % 2) {
      low ^= mixed(high, keys[i]) >> (32 - low_bits);
    } else {
      high ^= mixed(low, keys[i]) >> (32 - (bits - low_bits));
    }
  }
  return (high << low_bits) | low;
}

}  // namespace

TINY_VECTORISED void threefry(uint64_t key, uint64_t first, uint64_t* words) {
  const uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  const uint32_t keys[3] = {k1, k0 ^ k1 ^ 0x1BD11BDAu, k0};
  constexpr int rotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  uint32_t low[kBlock], high[kBlock];
  for (int64_t i = 0; i < kBlock; i++) {
    const uint64_t counter = first + static_cast<uint64_t>(i);
    low[i] = static_cast<uint32_t>(counter) + keys[2];
    high[i] = static_cast<uint32_t>(counter >> 32) + keys[0];
  }
  for (int round = 0; round < 5; round++) {
    for (int r = 0; r < 4; r++) {
      const int rotation = rotations[round % 2][r];
      for (int64_t i = 0; i < kBlock; i++) {
        const uint32_t sum = low[i] + high[i];
        high[i] = sum ^ ((high[i] << rotation) | (high[i] >> (32 - rotation)));
        low[i] = sum;
      }
    }
    const uint32_t to_low = keys[round % 3], to_high = keys[(round + 1) % 3] + static_cast<uint32_t>(round) + 1;
    for (int64_t i = 0; i < kBlock; i++) low[i] += to_low, high[i] += to_high;
  }
  for (int64_t i = 0; i < kBlock; i++) words[i] = static_cast<uint64_t>(high[i]) << 32 | low[i];
}

uint64_t Stream::word(uint64_t counter) const {
  uint64_t words[kBlock];
  threefry(key, counter, words);
  return words[0];
}

void integers(Stream& stream, const Tensor& values, int64_t low, uint64_t span) {
  const bool is_narrow = span != 0 && span <= (uint64_t{1} << 20);
  fill<int64_t>(stream, values, [=](uint64_t word) {
    const uint64_t drawn = is_narrow ? (static_cast<uint64_t>(lower_half(word)) * span) >> 32 : span == 0 ? word : word % span;
    return static_cast<int64_t>(drawn + static_cast<uint64_t>(low));
  });
}

uint64_t every_value(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf:
      return (uint64_t{1} << 11) + 1;
    case at::kBFloat16:
      return (uint64_t{1} << 8) + 1;
    case at::kFloat:
      return (uint64_t{1} << 24) + 1;
    case at::kDouble:
      return (uint64_t{1} << 53) + 1;
    case at::kBool:
      return 2;
    default: {
      const int bits = static_cast<int>(c10::elementSize(dtype)) * 8 - (c10::isSignedType(dtype) ? 1 : 0);
      return bits == 64 ? 0 : uint64_t{1} << bits;
    }
  }
}

void permutation(Stream& stream, const Tensor& values) {
  const int64_t n = values.numel();
  int64_t* const out = values.mutable_data_ptr<int64_t>();
  if (n <= 1) {
    std::fill(out, out + n, 0);
    return;
  }
  if (n <= kRanked) {
    std::vector<int64_t> keys(n), order(n);
    each_word(stream, stream.take(n), n, [&](int64_t i, uint64_t word) { keys[i] = static_cast<int64_t>((word >> 12 << 12) + i); });
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return keys[a] < keys[b]; });
    for (int64_t rank = 0; rank < n; rank++) out[order[rank]] = rank;
    return;
  }
  const int bits = 64 - __builtin_clzll(static_cast<uint64_t>(n - 1));
  uint64_t keys[kRounds];
  each_word(stream, stream.take(kRounds), kRounds, [&](int64_t i, uint64_t word) { keys[i] = word; });
  std::vector<int32_t> before(size_t{1} << bits);
  int32_t kept = 0;
  for (size_t x = 0; x < before.size(); x++) {
    before[x] = kept;
    kept += feistel(static_cast<uint32_t>(x), bits, keys, false) < n;
  }
  for (int64_t i = 0; i < n; i++) out[i] = before[feistel(static_cast<uint32_t>(i), bits, keys, true)];
}

}  // namespace tiny
