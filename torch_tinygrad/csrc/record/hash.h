// A 128-bit running hash, the same in every process: keys of traces and of inferred metadata.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace tiny {

struct Hash {
  uint64_t a = 0x9e3779b97f4a7c15ull, b = 0xc2b2ae3d27d4eb4full;

  void add(uint64_t x) {
    a = mix(a ^ x, 0xff51afd7ed558ccdull);
    b = mix(b + x, 0xc4ceb9fe1a85ec53ull);
  }
  void add(std::string_view text) {
    add(text.size());
    for (size_t i = 0; i < text.size(); i += 8) {
      uint64_t word = 0;
      std::memcpy(&word, text.data() + i, std::min<size_t>(8, text.size() - i));
      add(word);
    }
  }
  void add(c10::IntArrayRef values) {
    add(values.size());
    for (int64_t v : values) add(static_cast<uint64_t>(v));
  }
  void add(double value) {
    uint64_t bits;
    std::memcpy(&bits, &value, 8);
    add(bits);
  }
  std::string bytes() const {
    std::string text(16, '\0');
    std::memcpy(text.data(), &a, 8);
    std::memcpy(text.data() + 8, &b, 8);
    return text;
  }
  bool operator==(const Hash& other) const { return a == other.a && b == other.b; }

 private:
  static uint64_t mix(uint64_t x, uint64_t k) {
    const __uint128_t product = static_cast<__uint128_t>(x) * k;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64) ^ (x >> 29);
  }
};

struct HashHash {
  size_t operator()(const Hash& h) const { return h.a; }
};

}  // namespace tiny
