// Arguments and results of operators with other tensors in the place of theirs.
#pragma once

#include <ATen/core/ivalue.h>

#include <vector>

namespace tiny {

// The value with every tensor in it replaced.
template <class F>
c10::IValue replaced(const c10::IValue& value, const F& f) {
  if (value.isTensor()) return f(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> tensors;
    for (const at::Tensor& t : value.toTensorVector()) tensors.push_back(f(t));
    return tensors;
  }
  if (value.isList()) {
    const auto given = value.toList();
    c10::impl::GenericList list(given.elementType());
    for (size_t i = 0; i < given.size(); i++) list.push_back(replaced(given.get(i), f));
    return list;
  }
  return value;
}

// What stands for tensors of a device while a kernel of the CPU's computes a call.
class Replacements {
 public:
  struct Made {
    at::Tensor cpu;
    bool copies_back;  // it is written, and elsewhere than where the device's tensor has its bytes
  };
  struct One {
    at::Tensor ours;
    Made made;
  };

  // `make` gives what stands for each tensor of an argument: itself, where it may stay.
  template <class F>
  void enter(c10::IValue& argument, const F& make) {
    argument = replaced(argument, [&](const at::Tensor& t) {
      if (!t.defined()) return t;
      all_.push_back({t, make(t)});
      return all_.back().made.cpu;
    });
  }
  // Those that were handed in are handed out, and `fresh` makes the device's of others.
  template <class F>
  void leave(c10::IValue& result, const F& fresh) const {
    result = replaced(result, [&](const at::Tensor& t) {
      if (!t.defined()) return t;
      for (const One& one : all_)
        if (one.made.cpu.is_same(t)) return one.ours;
      return fresh(t);
    });
  }
  bool empty() const { return all_.empty(); }
  template <class F>
  void copy_back(const F& copy) const {
    for (const One& one : all_)
      if (one.made.copies_back) copy(one.ours, one.made.cpu);
  }

 private:
  std::vector<One> all_;
};

}  // namespace tiny
