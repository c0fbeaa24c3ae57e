// What is known of tensors' values, and of numbers.
#include "infer/ranges.h"

#include <cmath>

#include "record/call.h"
#include "record/recorder.h"

namespace tiny {

bool is_integral(at::ScalarType dtype) { return c10::isIntegralType(dtype, /*includeBool=*/true) && dtype != at::kUInt64; }

Range range_of_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBool:
      return Range::of(0, 1);
    case at::kByte:
      return Range::of(0, 255);
    case at::kChar:
      return Range::of(-128, 127);
    case at::kShort:
      return Range::of(-32768, 32767);
    case at::kUInt16:
      return Range::of(0, 65535);
    case at::kInt:
      return Range::of(std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max());
    case at::kUInt32:
      return Range::of(0, std::numeric_limits<uint32_t>::max());
    default:
      return Range::all();
  }
}

namespace {

Range range_of_number(double value) { return std::abs(value) < 9e18 ? Range::one(static_cast<int64_t>(value)) : Range::all(); }

// Looking for ends that stand apart takes a second look at all values, which pays for labels, not for data sets.
constexpr int64_t kMaxLookedAtTwice = 1 << 20;

template <class T>
Range scanned(const T* values, int64_t count) {
  T low = values[0], high = values[0];
#pragma omp simd reduction(min : low) reduction(max : high)
  for (int64_t i = 0; i < count; i++) {
    const T value = values[i];
    low = value < low ? value : low;
    high = value > high ? value : high;
  }
  if (count > kMaxLookedAtTwice) return Range::of(low, high);
  T next = high, previous = low;
#pragma omp simd reduction(min : next) reduction(max : previous)
  for (int64_t i = 0; i < count; i++) {
    const T above = values[i] == low ? high : values[i], below = values[i] == high ? low : values[i];
    next = above < next ? above : next;
    previous = below > previous ? below : previous;
  }
  // Where there is nothing between the ends, each is the other's neighbour.
  if (next == high) return {low, high, Range::kMost, Range::kLeast};
  return {low, high, next, previous};
}

}  // namespace

Range range_at(const void* values, int64_t count, at::ScalarType dtype) {
  if (count == 0) return Range();
  switch (dtype) {
    case at::kByte:
      return scanned(static_cast<const uint8_t*>(values), count);
    case at::kChar:
      return scanned(static_cast<const int8_t*>(values), count);
    case at::kShort:
      return scanned(static_cast<const int16_t*>(values), count);
    case at::kInt:
      return scanned(static_cast<const int32_t*>(values), count);
    case at::kLong:
      return scanned(static_cast<const int64_t*>(values), count);
    default:
      return range_of_dtype(dtype);
  }
}

Range range_of(const at::Tensor& tensor) {
  const auto dtype = tensor.scalar_type();
  if (!is_integral(dtype)) return Range::all();
  if (tensor.numel() == 0) return Range();
  const DeviceLock lock;
  const Storage& storage = *storage_of(tensor.storage().data_ptr());
  if (storage.shared != nullptr) return range_of_dtype(dtype);  // others write it too
  const Contents& contents = storage.contents;
  // What was never written may hold anything.
  return contents.dtype == dtype && !contents.range.empty() ? contents.range : range_of_dtype(dtype);
}

Range range_of(const c10::IValue& value) {
  if (value.isInt()) return Range::one(value.toInt());
  if (value.isBool()) return Range::one(value.toBool());
  if (value.isDouble()) return range_of_number(value.toDouble());
  if (value.isTensor() && value.toTensor().defined()) {
    const at::Tensor& tensor = value.toTensor();
    if (is_tiny(tensor)) return range_of(tensor);
    if (tensor.dim() != 0) return Range::all();
    const at::Scalar scalar = tensor.item();
    return scalar.isComplex() ? Range::all() : scalar.isFloatingPoint() ? range_of_number(scalar.toDouble()) : Range::one(scalar.toLong());
  }
  if (value.isTensorList()) {
    Range all;
    for (const auto& element : value.toListRef()) all = all.joined(range_of(element));
    return all;
  }
  return Range::all();
}

std::optional<int64_t> known_value(const at::Tensor& tensor) {
  const Range range = range_of(tensor);
  const DeviceLock lock;
  const bool is_one = is_integral(tensor.scalar_type()) && !range.empty() && range.low == range.high;
  return is_one && storage_of(tensor.storage().data_ptr())->lost.empty() ? std::optional(range.low) : std::nullopt;
}

void note_write(Storage& storage, bool is_whole, at::ScalarType dtype, const Range& range, bool exact) {
  Contents& contents = storage.contents;
  if (range.is_all()) {
    contents = Contents::unknown();
  } else if (is_whole || contents.range.empty()) {
    contents = {range, dtype, exact && is_whole};
  } else if (contents.dtype == dtype) {
    contents = {contents.range.joined(range), dtype, false};
  } else {
    contents = Contents::unknown();
  }
}

}  // namespace tiny
