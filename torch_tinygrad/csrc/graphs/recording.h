// What a call of one of torch.compile's graphs did: which arguments it was called with, what it recorded, what it returned,
// and what its backward passes recorded.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <mutex>

#include "graphs/trace_part.h"

namespace tiny {

struct TensorKind {
  c10::DispatchKeySet keys;
  at::ScalarType dtype;
  std::vector<int64_t> sizes, strides;
  int64_t offset;

  explicit TensorKind(const at::Tensor& t);
  bool is_of(const at::Tensor& t) const;
  void add_to(Hash& hash) const;
  at::Tensor made_over(c10::Storage storage) const;
};

// What dispatching depends on besides arguments.
struct Surroundings {
  c10::impl::PODLocalDispatchKeySet keys;
  at::ScalarType autocast;

  static Surroundings now();
  bool operator==(const Surroundings& other) const;
};

struct Recording;

// What one backward pass through a graph recorded, given the gradients of some of its results.
struct BackwardRecording {
  // The gradient of an argument: none, one that came in, one of an earlier argument, or one that the part makes.
  struct Gradient {
    enum class Kind : uint8_t { None, Given, Earlier, Made } kind;
    int index = 0;
    std::optional<TensorKind> tensor;  // of Made
  };
  Surroundings surroundings;
  std::vector<std::optional<TensorKind>> given;  // none: undefined
  std::vector<bool> wanted;                      // of which arguments
  TracePart part;  // what is given to it: the storages of the forward pass by their numbers there, then those of `given`
  std::vector<Gradient> gradients;
  Hash hash;
  bool is_trusted = false;

  // What was recorded since the mark, of a call whose storages these are; none if it is not to be kept.
  static std::shared_ptr<BackwardRecording> taken(const Recording& forward, c10::ArrayRef<StoragePtr> of_forward, const Mark& mark,
                                                  c10::ArrayRef<at::Tensor> given, const std::vector<bool>& wanted,
                                                  c10::ArrayRef<at::Tensor> results);
};

// Of graphs that do the same in their forward passes. DeviceLock guards it.
struct BackwardRecordings {
  std::vector<std::shared_ptr<BackwardRecording>> all;
  std::vector<bool> saved;  // by number of the forward pass's storages: those that a trusted one reads

  void add(std::shared_ptr<BackwardRecording> recording);  // a second one that is the same makes both trusted
  // A trusted one that gives what is wanted; gradients may be laid out otherwise than they were for it.
  std::shared_ptr<BackwardRecording> find(c10::ArrayRef<at::Tensor> gradients, const std::vector<bool>& wanted) const;
  bool is_trusted() const { return !saved.empty(); }
};

struct Recording {
  struct Argument {
    TensorKind kind;
    Contents contents;  // what was known of its values: checks of indices rest on it
    bool requires_grad;
    int64_t versions = 0;
  };
  struct Result {
    enum class Kind : uint8_t { Same, Argument, Made } kind;
    pybind11::object value;  // what is no tensor of the device, the same in each call
    int index = 0;           // of the argument, or of the storage
    std::optional<TensorKind> tensor;
    bool requires_grad = false;
  };
  c10::DeviceIndex device;
  Surroundings surroundings;
  bool grad_mode;
  std::vector<std::optional<Argument>> arguments;  // none: a number, in `numbers`
  std::vector<pybind11::object> numbers;
  std::vector<Result> results;
  TracePart part;  // given to it: the storages of `arguments`
  Hash hash;       // of all that a call does
  bool is_trusted = false;
  std::shared_ptr<BackwardRecordings> backward;  // none: no result needs a gradient

  bool is_pure() const;  // running it again would change nothing
  bool is_differentiable(size_t argument) const { return grad_mode && arguments[argument] && arguments[argument]->requires_grad; }
  size_t differentiable_results() const;
  // Whether somebody still holds one of its storages that is neither an argument's nor a result's.
  bool is_held(c10::ArrayRef<StoragePtr> storages) const;
};

// Shared by autograd's nodes, which may be the last to let go of it, without the interpreter lock.
template <class T>
std::shared_ptr<T> shared_with_python(T* made) {
  return std::shared_ptr<T>(made, [](T* last) {
    if (!Py_IsInitialized()) return;
    pybind11::gil_scoped_acquire gil;
    delete last;
  });
}

Storage* storage_of(const at::Tensor& tensor);
// Whether every value that `now` allows `then` allowed too.
bool is_known_as_well(const Contents& now, const Contents& then);
int64_t version_of(const at::Tensor& tensor);
int64_t& graphs_appended();

}  // namespace tiny
