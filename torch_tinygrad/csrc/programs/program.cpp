// Runs programs on devices that share the host's memory: kernels by address, ATen's CPU kernels on the same memory.
#include "programs/program.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <numeric>
#include <utility>

#include "device/host_memory.h"
#include "flush/flush.h"
#include "flush/journal.h"
#include "flush/random_stream.h"
#include "operators/kernels_only.h"
#include "programs/packing.h"
#include "programs/workers.h"
#include "python/python.h"

namespace tiny {

// Where the operands of a run are.
struct Addresses {
  c10::DeviceIndex device;
  std::vector<char*> inputs, outputs, constants, taken;
  char* arena = nullptr;
  std::vector<double> floats;
  std::vector<int64_t> ints;
  std::vector<std::shared_ptr<Buffer>> made;
  std::vector<Buffer*> buffers;  // of the inputs
  const std::vector<int64_t>* sizes = nullptr;

  char* operator[](const Slot& slot) const {
    switch (slot.kind) {
      case Slot::Kind::Input:
        return inputs[slot.index] + slot.offset;
      case Slot::Kind::Output:
        return outputs[slot.index] + slot.offset;
      case Slot::Kind::Arena:
        return arena + slot.offset;
      case Slot::Kind::Floats:
        return const_cast<char*>(reinterpret_cast<const char*>(floats.data())) + slot.offset;
      case Slot::Kind::Ints:
        return const_cast<char*>(reinterpret_cast<const char*>(ints.data())) + slot.offset;
      case Slot::Kind::Constant:
        return constants[slot.index] + slot.offset;
      case Slot::Kind::Sizes:
        return const_cast<char*>(reinterpret_cast<const char*>(sizes->data())) + slot.offset;
      case Slot::Kind::Taken:
        return taken[slot.index] + slot.offset;
      case Slot::Kind::Made:
        return static_cast<char*>(made[slot.index]->host) + slot.offset;
      default:
        return nullptr;
    }
  }
};

namespace {

// Calls a kernel with N 64-bit arguments. Kernels take pointers and integers only, so arguments beyond those a kernel
// declares are ignored by the calling convention.
template <size_t... I>
void call_with(uint64_t address, const uint64_t* args, std::index_sequence<I...>) {
  reinterpret_cast<void (*)(decltype((void)I, uint64_t{})...)>(address)(args[I]...);
}
void call_kernel(uint64_t address, const uint64_t* args, size_t count) {
  if (count <= 6) return call_with(address, args, std::make_index_sequence<6>{});
  if (count <= 16) return call_with(address, args, std::make_index_sequence<16>{});
  if (count <= 32) return call_with(address, args, std::make_index_sequence<32>{});
  call_with(address, args, std::make_index_sequence<64>{});
}

at::Tensor tensor_at(const SlotTensor& t, const Addresses& addresses) {
  return at::from_blob(addresses[t.slot], t.sizes, t.strides, at::TensorOptions().dtype(t.dtype));
}

// Whether the tensor lies as expected in memory of its own, which it shares with no argument and no other result.
bool stands_alone(const at::Tensor& t, const SlotTensor& expected) {
  return t.scalar_type() == expected.dtype && t.sizes() == expected.sizes && t.strides() == expected.strides && t.storage_offset() == 0 &&
         t.storage().allocator() == c10::GetCPUAllocator() && t.storage().use_count() == 1;
}

// A tensor in a generator's place holds the seed and the offset of our stream, which seed the CPU's generator.
void put(std::vector<c10::IValue>& arguments, const c10::FunctionSchema& schema, const std::vector<int>& path, const at::Tensor& tensor) {
  if (schema.arguments()[path[0]].name() == "generator") {
    const int64_t* numbers = tensor.const_data_ptr<int64_t>();
    arguments[path[0]] = at::detail::createCPUGenerator(seed_for_cpu(numbers[0], numbers[1]));
    return;
  }
  if (path.size() == 1) {
    arguments[path[0]] = tensor;
    return;
  }
  auto list = arguments[path[0]].toList();
  list.set(path[1], c10::IValue(tensor));
}

// Whether nobody else sees the buffer of a storage that only the trace still has, and it holds so many bytes.
bool can_take(const Storage& storage, int64_t nbytes) {
  const bool is_ours_alone = storage.buffer.use_count() == 1 && storage.shared == nullptr && !storage.buffer->owner;
  return is_ours_alone && storage.nbytes >= static_cast<size_t>(nbytes);
}

}  // namespace

bool Program::fits(const Trace& trace) const {
  for (size_t s = 0; s < std::min(storage_sizes.size(), trace.storages.size()); s++)
    if (storage_sizes[s] >= 0 && static_cast<size_t>(storage_sizes[s]) != trace.storages[s]->nbytes) return false;
  return true;
}

void HostProgram::add_kernel(std::string image, Imports imports, std::vector<Slot> args, std::vector<int64_t> values, int threads,
                             int core_position, bool beside, int64_t elements) {
  TORCH_CHECK(args.size() + values.size() <= 64, "tiny: a kernel of ", args.size() + values.size(), " arguments");
  steps_.push_back({true, static_cast<uint32_t>(kernels_.size()), {}});
  kernels_.push_back({0, std::make_shared<const std::string>(std::move(image)), std::move(imports), std::move(args), std::move(values),
                      threads, core_position, beside, elements});
}

void HostProgram::settle() {
  // As `ALIGNMENT` in values/blocks.py, and `_ELEMENTS_A_THREAD` in engine/loop_choice.py.
  constexpr int64_t kAlignment = 64, kElementsAThread = 16 << 10;
  std::vector<int64_t> begins;
  for (const auto& [block, nbytes] : temporaries) {
    if (block >= begins.size()) begins.resize(block + 1, 0);
    begins[block] = std::max(begins[block], (nbytes + kAlignment - 1) / kAlignment * kAlignment);
  }
  arena = 0;
  for (int64_t& begin : begins) begin = std::exchange(arena, arena + begin);
  bytes_moved = std::accumulate(moved.begin(), moved.end(), int64_t{0});
  auto place = [&](Slot& slot) {
    if (slot.kind == Slot::Kind::Arena) slot.offset += begins[slot.index];
  };
  for (Kernel& kernel : kernels_) {
    for (Slot& slot : kernel.args) place(slot);
    kernel.is_small = kernel.elements < kernel.threads * kElementsAThread;
  }
  for (Aten& aten : atens_) {
    for (auto& [path, tensor] : aten.tensors) place(tensor.slot);
    for (SlotTensor& result : aten.results) place(result.slot);
  }
}

void HostProgram::release_after(std::vector<uint32_t> made) { steps_.back().releases = std::move(made); }

uint32_t HostProgram::add_constant(std::string bytes) {
  constants_.push_back(std::move(bytes));
  return static_cast<uint32_t>(constants_.size() - 1);
}

HostProgram::Aten HostProgram::make_aten(const std::string& name, const std::string& overload, std::vector<c10::IValue> arguments,
                                         std::vector<std::pair<std::vector<int>, SlotTensor>> tensors, std::vector<SlotTensor> results,
                                         bool packs) {
  auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
  const bool out_form = op.schema().arguments().size() > arguments.size();
  return {op, out_form, std::move(arguments), std::move(tensors), std::move(results), packs};
}

void HostProgram::add_aten(const std::string& name, const std::string& overload, std::vector<c10::IValue> arguments,
                           std::vector<std::pair<std::vector<int>, SlotTensor>> tensors, std::vector<SlotTensor> results, bool packs) {
  steps_.push_back({false, static_cast<uint32_t>(atens_.size()), {}});
  atens_.push_back(make_aten(name, overload, std::move(arguments), std::move(tensors), std::move(results), packs));
}

size_t HostProgram::end_of_batch(size_t step) const {
  size_t end = step + 1;
  while (end < steps_.size() && steps_[end].is_kernel && kernels_[steps_[end].index].beside) end++;
  return end;
}

// Each kernel's share for each core is a piece of work, and whichever thread is free takes the next.
void HostProgram::run_kernels(size_t begin, size_t end, const Addresses& addresses) const {
  auto run = [&](const Kernel& kernel, int core) {
    uint64_t args[64] = {};
    size_t count = 0;
    for (const Slot& slot : kernel.args) args[count++] = reinterpret_cast<uint64_t>(addresses[slot]);
    for (int64_t value : kernel.values) args[count++] = static_cast<uint64_t>(value);
    if (kernel.core_position >= 0) args[kernel.core_position] = static_cast<uint64_t>(core);
    call_kernel(kernel.address, args, count);
  };
  bool is_large = false;
  for (size_t step = begin; step < end; step++) {
    const Kernel& kernel = kernels_[steps_[step].index];
    is_large |= kernel.threads > 1 && !kernel.is_small;
  }
  const int threads = is_large ? at::get_num_threads() : 1;
  if (threads == 1) {
    for (size_t step = begin; step < end; step++) {
      const Kernel& kernel = kernels_[steps_[step].index];
      for (int core = 0; core < std::max(1, kernel.threads); core++) run(kernel, core);
    }
    return;
  }
  std::vector<std::pair<const Kernel*, int>> shares;
  for (size_t step = begin; step < end; step++) {
    const Kernel& kernel = kernels_[steps_[step].index];
    for (int core = 0; core < std::max(1, kernel.threads); core++) shares.emplace_back(&kernel, core);
  }
  const auto count = static_cast<int64_t>(shares.size());
  const auto run_share = [&](int64_t i) { run(*shares[i].first, shares[i].second); };
  if (atens_.empty()) {
    share_out(count, threads, run_share);
  } else {
    // Between ATen's steps its own helpers are awake, on the cores that others would need.
    std::atomic<int64_t> next{0};
    at::parallel_for(0, std::min<int64_t>(count, threads), 1, [&](int64_t, int64_t) {
      for (int64_t i = next++; i < count; i = next++) run_share(i);
    });
  }
}

void HostProgram::run_aten(const Aten& aten, Addresses& addresses) const {
  const KernelsOnly kernels_only;
  const AtenTakesHostMemory takes_ours;
  torch::jit::Stack stack;
  stack.reserve(aten.arguments.size() + aten.results.size());
  for (const auto& value : aten.arguments) stack.push_back(value.isList() ? c10::IValue(value.toList().copy()) : value);
  for (const auto& [path, tensor] : aten.tensors) put(stack, aten.op.schema(), path, tensor_at(tensor, addresses));
  if (aten.out_form)
    for (const auto& result : aten.results) stack.emplace_back(tensor_at(result, addresses));
  at::Tensor packed;
  if (aten.packs) packed = convolve_packed(stack, *addresses.buffers[aten.tensors[1].second.slot.index]);
  if (packed.defined()) {
    stack = {packed};
  } else {
    aten.op.callBoxed(&stack);
  }
  if (aten.out_form) return;
  size_t next = 0;
  auto store = [&](const at::Tensor& value) {
    const SlotTensor& result = aten.results[next++];
    if (!value.defined() || result.dtype == at::ScalarType::Undefined) return;
    if (result.slot.kind == Slot::Kind::Made) {
      at::Tensor kept = value;
      if (!stands_alone(value, result))
        kept = at::empty_strided(result.sizes, result.strides, value.options().dtype(result.dtype)).copy_(value);
      addresses.made[result.slot.index] = adopted_buffer(addresses.device, kept.nbytes(), kept.storage());
    } else {
      tensor_at(result, addresses).copy_(value);
    }
  };
  for (const auto& value : stack) {
    if (value.isTensor()) {
      store(value.toTensor());
    } else if (value.isTensorList()) {
      for (const auto& t : value.toListRef()) store(t.toTensor());
    }
  }
}

void HostProgram::run(const Trace& trace, const std::vector<Number>& numbers) {
  Addresses addresses{trace.device};
  std::vector<std::shared_ptr<Buffer>> fresh, temporaries;
  addresses.inputs.reserve(inputs.size());
  for (uint32_t i : inputs) {
    Storage& storage = *trace.storages[i];
    if (storage.buffer == nullptr) storage.buffer = host_buffer(storage.device, storage.nbytes);  // never written
    addresses.inputs.push_back(static_cast<char*>(storage.buffer->host));
    addresses.buffers.push_back(storage.buffer.get());
  }
  for (const auto& [storage, nbytes] : outputs) {
    fresh.push_back(host_buffer(trace.device, static_cast<size_t>(nbytes)));
    addresses.outputs.push_back(static_cast<char*>(fresh.back()->host));
  }
  for (const auto& [input, nbytes] : taken) {
    if (can_take(*trace.storages[inputs[input]], nbytes)) {
      addresses.taken.push_back(addresses.inputs[input]);
    } else {
      temporaries.push_back(host_buffer(trace.device, static_cast<size_t>(nbytes)));
      addresses.taken.push_back(static_cast<char*>(temporaries.back()->host));
    }
  }
  if (arena > 0) {
    temporaries.push_back(host_buffer(trace.device, static_cast<size_t>(arena)));
    addresses.arena = static_cast<char*>(temporaries.back()->host);
  }
  for (std::string& constant : constants_) addresses.constants.push_back(constant.data());
  for (uint32_t p : floats) addresses.floats.push_back(numbers[p].is_float ? numbers[p].f : static_cast<double>(numbers[p].i));
  for (uint32_t p : ints) addresses.ints.push_back(numbers[p].i);

  addresses.made.resize(made);
  addresses.sizes = &sizes;

  started = true;
  for (uint32_t i : written) addresses.buffers[i]->derived.reset();
  const bool timed = watched() || debug_level() >= 2;
  times.clear();
  for (size_t begin = 0, end; begin < steps_.size(); begin = end) {
    const auto start = timed ? std::chrono::steady_clock::now() : std::chrono::steady_clock::time_point();
    end = begin + 1;
    if (!steps_[begin].is_kernel) {
      run_aten(atens_[steps_[begin].index], addresses);
    } else {
      if (!timed) end = end_of_batch(begin);
      run_kernels(begin, end, addresses);
    }
    for (size_t step = begin; step < end; step++)
      for (uint32_t i : steps_[step].releases) addresses.made[i].reset();
    if (timed) times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
  }
  for (size_t i = 0; i < fresh.size(); i++) trace.storages[outputs[i].first]->buffer = fresh[i];
  for (const auto& [storage, index] : adopted) trace.storages[storage]->buffer = addresses.made[index];
}

}  // namespace tiny
