#include "flush/direct.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/accumulate.h>

#include <algorithm>

#include "device/host_memory.h"
#include "flush/journal.h"
#include "flush/pieces.h"
#include "flush/random_stream.h"
#include "flush/staged.h"
#include "operators/kernels_only.h"
#include "python/python.h"
#include "record/recorder.h"
#include "record/replaced.h"

namespace tiny {
namespace {

using at::Tensor;

// Storages by the node after which they are not needed any more.
std::vector<std::vector<int32_t>> last_uses(const Trace& trace, const Uses& uses) {
  std::vector<std::vector<int32_t>> by_node(trace.nodes.size());
  for (size_t s = 0; s < uses.last.size(); s++)
    if (uses.last[s] >= 0) by_node[uses.last[s]].push_back(static_cast<int32_t>(s));
  return by_node;
}

class Runner {
 public:
  explicit Runner(Trace& trace) : trace_(trace), device_(direct_device(trace.device)), memory_(trace.storages.size()) {}

  void run(const Node& node) {
    torch::jit::Stack stack = arguments_of(node);
    if (node.op->random) {
      const int64_t seed = number(node.outs - 2), offset = number(node.outs - 1);
      if (draws(*node.op)) return draw(*node.op, stack, results_of(node, stack), seed, offset);
      seed_generator(*node.op, stack, seed_for_cpu(seed, offset));
      if (!device_.is_cpu()) return run_on_cpu(node, stack);
    }
    const auto moved = node.op->writes ? separate(*node.op, stack) : std::vector<std::pair<Tensor, Tensor>>();
    has_kernel(*node.op) ? call(node, stack) : run_on_cpu(node, stack);
    for (const auto& [dense, out] : moved) out.copy_(dense);
  }

  // What is kept of a storage in another form, on the device for one, will be old.
  void begin_write(int32_t index) {
    if (const auto& buffer = trace_.storages[index]->buffer) buffer->derived.reset();
    drop_device_copy(*trace_.storages[index]);
  }

  void forget(int32_t storage) {
    memory_[storage] = c10::Storage();
    if (!trace_.live[storage]) trace_.storages[storage]->buffer.reset();
  }

 private:
  // An operator's results are functions of what its arguments held before it, wherever they go. Kernels of ATen's that are
  // no loops over elements may write what they have yet to read (`mm(x, x, out=x)`), or take `out=` for dense (`gelu`): what
  // they read is a copy then, and what they write dense. The second of each pair is where the first belongs.
  static std::vector<std::pair<Tensor, Tensor>> separate(const OpInfo& info, torch::jit::Stack& stack) {
    std::vector<std::pair<Tensor, Tensor>> moved;
    const bool is_loop = info.op.hasTag(at::Tag::pointwise);
    for (size_t w = 0; w < stack.size(); w++) {
      if (!info.args[w].write || !stack[w].isTensor() || !stack[w].toTensor().defined()) continue;
      const Tensor written = stack[w].toTensor();
      auto apart = [&](const Tensor& read) {
        if (!read.defined() || !read.storage().is_alias_of(written.storage()) || read.numel() == 0 || written.numel() == 0) return read;
        const at::MemOverlapStatus overlap = at::get_overlap_status(written, read);
        const bool may_stay = overlap == at::MemOverlapStatus::No || (overlap == at::MemOverlapStatus::Full && is_loop);
        return may_stay ? read : read.clone();
      };
      for (size_t r = 0; r < stack.size(); r++)
        if (!info.args[r].write && (stack[r].isTensor() || stack[r].isTensorList())) stack[r] = replaced(stack[r], apart);
      if (is_loop || written.is_contiguous() || !info.op.schema().arguments()[w].is_out()) continue;
      stack[w] = written.contiguous();
      moved.emplace_back(stack[w].toTensor(), written);
    }
    return moved;
  }

  // A GPU's kernels take fewer types than the CPU's do: those they refuse are computed there.
  void call(const Node& node, torch::jit::Stack& stack) {
    const torch::jit::Stack given = device_.is_cpu() ? torch::jit::Stack() : stack;
    try {
      node.op->op.callBoxed(&stack);
    } catch (const c10::NotImplementedError&) {
      if (device_.is_cpu()) throw;
      return run_on_cpu(node, given);
    }
    keep(node, std::move(stack));
  }

  at::IntArrayRef sizes(const Region& r) const { return {trace_.ints.data() + r.shape, r.ndim}; }
  at::IntArrayRef strides(const Region& r) const { return {trace_.ints.data() + r.shape + r.ndim, r.ndim}; }

  // The bytes of a storage, as ATen's. All tensors over it share one, so that ATen sees who overlaps whom.
  const c10::Storage& memory_of(int32_t index) {
    c10::Storage& memory = memory_[index];
    if (memory) return memory;
    Storage& storage = *trace_.storages[index];
    if (storage.buffer == nullptr && trace_.live[index]) check_buffer_bytes(storage.nbytes);
    return memory = for_aten(storage);
  }
  Tensor tensor_of(const Region& region) {
    Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(memory_of(region.storage)), c10::DispatchKeySet(key()),
                                                             c10::scalarTypeToTypeMeta(region.dtype));
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes(region), strides(region), region.offset);
    return tensor;
  }

  c10::DispatchKey key() const { return c10::computeDispatchKey(std::nullopt, std::nullopt, device_); }
  bool has_kernel(const OpInfo& info) const { return device_.is_cpu() || info.op.hasComputedKernelForDispatchKey(key()); }

  int64_t number(uint32_t ref) const { return trace_.numbers[trace_.refs[ref].index].i; }
  at::Scalar scalar_of(const ArgRef& ref) const {
    if (ref.kind == ArgRef::Kind::Value) return trace_.values[ref.index].toScalar();
    const Number& given = trace_.numbers[ref.index];
    if (given.is_float) return given.f;
    return ref.dtype == at::kBool ? at::Scalar(given.i != 0) : at::Scalar(given.i);
  }
  // What stands where an operator takes a tensor.
  Tensor tensor_at(const ArgRef& ref) {
    if (ref.kind == ArgRef::Kind::None) return {};
    if (ref.kind == ArgRef::Kind::Region) return tensor_of(trace_.regions[ref.index]);
    Tensor tensor = at::scalar_tensor(scalar_of(ref), at::TensorOptions().dtype(ref.dtype));
    tensor.unsafeGetTensorImpl()->set_wrapped_number(ref.wrapped);
    return tensor;
  }

  torch::jit::Stack arguments_of(const Node& node) {
    using Kind = OpInfo::Kind;
    torch::jit::Stack stack;
    stack.reserve(node.op->args.size());
    uint32_t at = node.args;
    for (const OpInfo::Arg& argument : node.op->args) {
      const ArgRef& ref = trace_.refs[at++];
      if (ref.kind == ArgRef::Kind::List) {
        stack.push_back(list_of(argument.kind, at, ref.index));
        at += ref.index;
      } else if (argument.kind == Kind::Tensor && ref.kind != ArgRef::Kind::None) {
        stack.emplace_back(tensor_at(ref));
      } else if (ref.kind == ArgRef::Kind::Number) {
        const at::Scalar value = scalar_of(ref);
        stack.push_back(argument.kind == Kind::Float ? c10::IValue(value.toDouble()) : c10::IValue(value));
      } else if (ref.kind == ArgRef::Kind::Value) {
        stack.push_back(trace_.values[ref.index]);
      } else {
        stack.emplace_back();
      }
    }
    if (!node.op->reads_tensors && node.outs < node.writes) fix_options(node, stack);
    return stack;
  }
  c10::IValue list_of(OpInfo::Kind kind, uint32_t begin, uint32_t count) {
    if (kind == OpInfo::Kind::TensorList) {
      c10::List<Tensor> list;
      for (uint32_t i = 0; i < count; i++) list.push_back(tensor_at(trace_.refs[begin + i]));
      return list;
    }
    if (kind == OpInfo::Kind::OptionalTensorList) {
      c10::List<std::optional<Tensor>> list;
      for (uint32_t i = 0; i < count; i++) {
        const ArgRef& ref = trace_.refs[begin + i];
        list.push_back(ref.kind == ArgRef::Kind::None ? std::nullopt : std::optional<Tensor>(tensor_at(ref)));
      }
      return list;
    }
    c10::List<at::Scalar> list;
    for (uint32_t i = 0; i < count; i++) list.push_back(scalar_of(trace_.refs[begin + i]));
    return list;
  }
  // A factory makes its result on ATen's device. Without a dtype it would take the default one, which may have changed
  // since it was recorded.
  void fix_options(const Node& node, torch::jit::Stack& stack) const {
    const ArgRef& out = trace_.refs[node.outs];
    const auto& arguments = node.op->op.schema().arguments();
    for (size_t i = 0; i < stack.size() && out.kind == ArgRef::Kind::Region; i++) {
      if (stack[i].isNone() && arguments[i].name() == "dtype") stack[i] = c10::IValue(trace_.regions[out.index].dtype);
      if (arguments[i].name() == "device") stack[i] = c10::IValue(device_);
    }
  }

  // An operator of which ATen has a kernel for the CPU alone: arguments come down, what it writes goes up.
  void run_on_cpu(const Node& node, const torch::jit::Stack& stack) {
    Replacements replacements;
    torch::jit::Stack below = stack;
    for (size_t i = 0; i < below.size(); i++) {
      if (below[i].isDevice()) below[i] = c10::IValue(at::Device(at::kCPU));
      replacements.enter(below[i], [&](const Tensor& t) { return Replacements::Made{t.cpu(), node.op->args[i].write}; });
    }
    node.op->op.callBoxed(&below);
    replacements.copy_back([](const Tensor& to, const Tensor& from) { to.copy_(from); });
    warn_fallback(node.op->name);
    stats().fallbacks[node.op->name]++;
    for (c10::IValue& value : below) replacements.leave(value, [](const Tensor& t) { return t; });
    keep(node, std::move(below));
  }

  // Operators whose stream is not written here take the CPU's generator, seeded by ours.
  static void seed_generator(const OpInfo& info, torch::jit::Stack& stack, uint64_t seed) {
    for (size_t i = 0; i < stack.size(); i++)
      if (info.args[i].kind == OpInfo::Kind::Generator) stack[i] = c10::IValue(at::detail::createCPUGenerator(seed));
  }

  // Where a random operator's results go: fresh ones, then `out=`, then whatever else it writes.
  std::vector<Tensor> results_of(const Node& node, const torch::jit::Stack& stack) {
    std::vector<Tensor> results;
    for (uint32_t r = node.outs; r < node.writes; r++)
      if (trace_.refs[r].kind == ArgRef::Kind::Region) results.push_back(tensor_of(trace_.regions[trace_.refs[r].index]));
    for (const bool out : {true, false})
      for (size_t i = 0; i < stack.size(); i++)
        if (node.op->args[i].write && node.op->op.schema().arguments()[i].is_out() == out && stack[i].isTensor())
          results.push_back(stack[i].toTensor());
    return results;
  }

  bool is_argument(const Tensor& result, const Node& node) {
    bool found = false;
    each_region(trace_, node.args, node.outs,
                [&](const Region& r) { found = found || result.storage().is_alias_of(memory_of(r.storage)); });
    return found;
  }

  // Gives fresh results to their storages.
  void keep(const Node& node, torch::jit::Stack&& returned) {
    std::vector<Tensor> results;
    for (auto& value : returned) {
      if (value.isTensor()) {
        results.push_back(std::move(value).toTensor());
      } else if (value.isTensorList()) {
        for (const auto& t : value.toListRef()) results.push_back(t.toTensor());
      }
    }
    returned.clear();
    const size_t wanted = node.writes - node.outs;
    if (wanted == 0) return;
    if (results.size() != wanted) {
      auto written = [&](const Tensor& t) { return t.defined() && is_argument(t, node); };
      results.erase(std::remove_if(results.begin(), results.end(), written), results.end());
    }
    TORCH_INTERNAL_ASSERT(results.size() == wanted, "tiny: ", node.op->name, " gave ", results.size(), " results, not ", wanted);
    for (size_t i = 0; i < wanted; i++) {
      const ArgRef& ref = trace_.refs[node.outs + i];
      if (ref.kind != ArgRef::Kind::Region || !results[i].defined()) continue;
      keep(trace_.regions[ref.index], std::move(results[i]));
    }
  }
  void keep(const Region& region, Tensor result) {
    Storage& storage = *trace_.storages[region.storage];
    if (storage.nbytes == 0) return;
    // The CPU's kernels keep something for the gradient that others compute again: nobody reads it.
    if (result.numel() == 0 && c10::multiply_integers(sizes(region)) != 0) return;
    const bool lies_as_promised = result.scalar_type() == region.dtype && result.sizes() == sizes(region) &&
                                  result.strides() == strides(region) && result.storage_offset() == 0 && !result.is_conj() &&
                                  !result.is_neg() && result.storage().nbytes() >= storage.nbytes && result.device() == device_ &&
                                  (!device_.is_cpu() || result.storage().allocator() == c10::GetCPUAllocator());
    if (trace_.live[region.storage]) check_buffer_bytes(storage.nbytes);
    if (lies_as_promised && result.use_count() == 1 && result.storage().use_count() == 1) {
      storage.buffer = adopted_buffer(storage.device, storage.nbytes, result.storage());
    } else {
      tensor_of(region).copy_(result);
    }
  }

  Trace& trace_;
  const c10::Device device_;
  std::vector<c10::Storage> memory_;  // by number of the storage, while it is in use
};

}  // namespace

std::exception_ptr run_directly(Trace& trace) {
  begin_direct(trace.device);
  const KernelsOnly kernels_only;
  const AtenTakesHostMemory takes_ours;
  const Uses uses(trace);
  const auto unused_after = last_uses(trace, uses);
  Runner runner(trace);
  std::exception_ptr refusal;
  auto lose = [&](const Node& node, uint32_t begin, const std::string& reason) {
    each_region(trace, begin, node.end, [&](const Region& region) {
      trace.storages[region.storage]->contents = Contents::unknown();
      trace.storages[region.storage]->lost = reason;
    });
  };
  for (size_t n = 0; n < trace.nodes.size(); n++) {
    if (!uses.runs[n]) continue;
    const Node& node = trace.nodes[n];
    const std::string* lost = nullptr;
    each_region(trace, node.args, node.outs, [&](const Region& region) {
      if (!trace.storages[region.storage]->lost.empty()) lost = &trace.storages[region.storage]->lost;
    });
    if (lost != nullptr) {
      lose(node, node.outs, std::string(*lost));
    } else {
      std::string reason;
      const int64_t start = watched() ? now() : 0;
      try {
        each_region(trace, node.writes, node.end, [&](const Region& region) { runner.begin_write(region.storage); });
        runner.run(node);
        if (watched()) {
          wait_for_device(trace.device);
          note_step(node.op->name, start, now());
        }
      } catch (const c10::Error& error) {
        reason = error.what_without_backtrace();
        if (!refusal) refusal = std::current_exception();
      } catch (const std::exception& error) {
        reason = error.what();
        if (!refusal) refusal = std::current_exception();
      }
      // What it would have made is lost; what it would have changed keeps its value, as after any exception of PyTorch's.
      if (!reason.empty())
        each_region(trace, node.outs, node.writes, [&](const Region& region) {
          trace.storages[region.storage]->contents = Contents::unknown();
          trace.storages[region.storage]->lost = node.op->name + ": " + reason;
        });
    }
    for (int32_t storage : unused_after[n]) runner.forget(storage);
  }
  return refusal;
}

}  // namespace tiny
