// What has been recorded and not yet run: nodes over regions of storages, and the running key of it all.
#pragma once

#include <ATen/core/TensorBody.h>

#include <vector>

#include "device/storage.h"
#include "record/hash.h"
#include "record/op_info.h"

namespace tiny {

struct Region {
  int32_t storage;  // its number in the trace
  at::ScalarType dtype;
  uint32_t ndim;
  uint32_t shape;  // where its sizes, then its strides, begin in Trace::ints
  int64_t offset;
};

struct Number {
  bool is_float;
  union {
    double f;
    int64_t i;
  };
  bool operator==(const Number& o) const { return is_float == o.is_float && i == o.i; }
};

struct ArgRef {
  enum class Kind : uint8_t { None, Region, Number, Value, List };
  Kind kind;
  uint32_t index;  // of the region, number or value; or the length of the list that follows
  // Of a number or value: the dtype of the 0-dim CPU tensor it was given as, or its own (double, int64, bool).
  at::ScalarType dtype = at::ScalarType::Undefined;
  bool wrapped = false;  // it was given as a Python number where a tensor is expected
};

struct Node {
  const OpInfo* op;
  uint32_t args, outs, writes, end;  // ranges of Trace::refs: arguments, fresh results, changed arguments
  uint64_t kind = 0;                 // the same for nodes of the same operator on arguments of the same geometry
  Hash hash;                         // of everything in it but storages, offsets and numbers that may become inputs
};

struct Trace {
  uint64_t serial = 1;
  c10::DeviceIndex device = 0;
  std::vector<Node> nodes;
  std::vector<ArgRef> refs;
  std::vector<Region> regions;
  std::vector<int64_t> ints;
  std::vector<Number> numbers;
  std::vector<c10::IValue> values;
  std::vector<StoragePtr> storages;
  std::vector<bool> live;  // while it is flushed: storages whose values are needed afterwards
  Hash key;
  int64_t bytes = 0;
  bool is_piece = false;  // of a loop that was cut

  int32_t number_of(Storage* storage);
  uint32_t add_region(const at::Tensor& tensor);
  void note_live();
  void clear();
  bool refers_to(const Storage* storage) const { return storage->trace == serial && storage->index >= 0; }
};

}  // namespace tiny
