// Plain data as bytes: what programs are written to disk and sent between processes as.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace tiny {

struct Damaged : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Writer {
 public:
  std::string bytes;

  template <class T>
  void number(T value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  void text(std::string_view value) {
    number<uint64_t>(value.size());
    bytes.append(value);
  }
  template <class T>
  void numbers(const std::vector<T>& values) {
    number<uint64_t>(values.size());
    for (const T& value : values) number(value);
  }
  template <class T, class F>
  void list(const T& items, F&& each) {
    number<uint64_t>(items.size());
    for (const auto& item : items) each(item);
  }
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string_view view() { return take(number<uint64_t>()); }
  std::string text() { return std::string(view()); }
  template <class T>
  std::vector<T> numbers() {
    const std::string_view data = take(count(sizeof(T)) * sizeof(T));
    std::vector<T> values(data.size() / sizeof(T));
    std::memcpy(values.data(), data.data(), data.size());
    return values;
  }
  // A number of items that each take at least `size` bytes.
  size_t count(size_t size = 1) {
    const auto n = number<uint64_t>();
    if (n > rest_.size() / size) throw Damaged("too many items");
    return n;
  }
  void end() const {
    if (!rest_.empty()) throw Damaged("more than was expected");
  }

 private:
  std::string_view take(size_t size) {
    if (size > rest_.size()) throw Damaged("less than was expected");
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }
  std::string_view rest_;
};

}  // namespace tiny
