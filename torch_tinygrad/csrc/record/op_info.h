// What the recorder knows of an operator: kinds of its arguments, what it writes, which numbers may be inputs.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <vector>

#include "infer/range_rules.h"
#include "record/hash.h"
#include "refuse/index_rules.h"
#include "refuse/refusals.h"

namespace tiny {

// Made at the operator's first use.
struct OpInfo {
  enum class Kind : uint8_t { Tensor, TensorList, OptionalTensorList, Scalar, ScalarList, Float, Generator, Device, Value };
  struct Arg {
    Kind kind;
    bool write;  // the operator changes this argument
    bool lift;   // a changing number here becomes an input of the program
  };
  explicit OpInfo(c10::OperatorHandle op) : op(std::move(op)) {}
  c10::OperatorHandle op;
  std::string name;
  Hash hash;
  std::vector<Arg> args;
  int device = -1;             // the argument that names a device
  bool writes = false;         // some argument is changed
  bool reads_tensors = false;  // some argument is a tensor
  bool takes_generator = false;
  bool random = false;             // takes a slice of the generator's stream
  bool index = false;              // takes index tensors, which may be on the CPU
  bool iterated = false;           // ATen's iterator lays its result out
  bool dynamic = false;            // the shapes of results depend on values
  bool refuses = false;            // its kernel may refuse values: it runs alone, so that its error is raised where it is called
  bool absolute = false;           // takes offsets that count from where the storage begins
  std::vector<RangeRule> ranges;   // of its results
  std::vector<IndexRule> indices;  // its arguments that select places in others
  std::vector<int> converted;      // its numbers that are converted to the dtype of the result
  ValueCheck check = nullptr;      // of the values it refuses
};
const OpInfo& op_info(const c10::OperatorHandle& op);

}  // namespace tiny
