// A compiled trace: steps over slots. Running one needs no Python where the device shares the host's memory.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "record/trace.h"

namespace tiny {

struct Program {
  virtual ~Program() = default;
  // Runs on the trace's storages: reads their buffers and gives the written ones new buffers. `numbers` are the trace's,
  // then how far each group of regions has moved.
  virtual void run(const Trace& trace, const std::vector<Number>& numbers) = 0;
  // As plain data, to be kept on disk; none where a part of it cannot be written down.
  virtual std::optional<std::string> to_bytes() const = 0;

  bool started = false;  // the last run came as far as its first step
  // Bytes of each storage as it was compiled; -1 of those it takes parts of, whatever their size, or whose size is in its key.
  std::vector<int64_t> storage_sizes;
  bool fits(const Trace& trace) const;

  std::vector<uint32_t> lifted;  // positions of numbers that are inputs; all others are constants of the program
  Hash constants;                // of the numbers and offsets it was compiled for
  std::vector<int64_t> origins;  // bytes before each group of moving regions, as it was compiled
  int64_t kernels = 0, bytes_moved = 0;
  std::map<std::string, int64_t> fallbacks;
  std::vector<std::string> description;  // a line a step
  std::vector<double> times;             // of the steps of the last run, in microseconds, at debug level 2
};

// Where a step finds an operand.
struct Slot {
  enum class Kind : uint32_t { Input, Output, Arena, Floats, Ints, Constant, Nowhere, Made, Sizes, Taken };
  Kind kind;
  uint32_t index;  // of the input, output, constant, made tensor, block of the arena or input that is taken
  int64_t offset;  // in bytes
};

// An argument tensor or result of an ATen step: a strided array in a slot.
struct SlotTensor {
  Slot slot;
  at::ScalarType dtype;
  std::vector<int64_t> sizes, strides;
};

struct Addresses;

// Symbols of the C library that machine code calls: a name, and where in the code its address belongs.
using Imports = std::vector<std::pair<std::string, uint64_t>>;

class HostProgram final : public Program {
 public:
  void run(const Trace& trace, const std::vector<Number>& numbers) override;
  std::optional<std::string> to_bytes() const override;
  static std::shared_ptr<HostProgram> read_from(std::string_view bytes);  // none where they are damaged

  std::vector<uint32_t> inputs;                       // storages read, or written in place
  std::vector<uint32_t> written;                      // which of the inputs are written in place
  std::vector<std::pair<uint32_t, int64_t>> outputs;  // storages that get a new buffer: number, bytes
  // Inputs that nobody needs once they were read, and that temporaries lie in then: which of the inputs, bytes.
  std::vector<std::pair<uint32_t, int64_t>> taken;
  std::vector<uint32_t> floats, ints;                  // positions of lifted numbers, by type
  std::vector<std::pair<uint32_t, uint32_t>> adopted;  // storages that get a tensor which ATen made: number, its index
  uint32_t made = 0;                                   // tensors that ATen's steps make
  int64_t arena = 0;                                   // bytes of temporaries
  // Where this is a program of many sizes:
  std::vector<int64_t> sizes;                             // the table that kernels take sizes from
  std::vector<std::pair<uint32_t, int64_t>> temporaries;  // block of the arena, bytes
  std::vector<int64_t> moved;                             // bytes, by step

  // `image` is machine code that works at any address. A kernel that is `beside` may run at the same time as those directly
  // before it.
  void add_kernel(std::string image, Imports imports, std::vector<Slot> args, std::vector<int64_t> values, int threads, int core_position,
                  bool beside, int64_t elements = 0);
  void load_images();  // gives all kernels their addresses; to be called before the first run
  // Calls `visit(int64_t&)` with all that follows from sizes: places, sizes, strides, bytes, integer arguments.
  template <class Visit>
  void each_integer(Visit&& visit);
  void settle();  // after they were filled in: gives temporaries their places
  uint32_t add_constant(std::string bytes);
  void release_after(std::vector<uint32_t> made);  // lets go of made tensors after the step added last
  void add_aten(const std::string& name, const std::string& overload, std::vector<c10::IValue> arguments,
                std::vector<std::pair<std::vector<int>, SlotTensor>> tensors, std::vector<SlotTensor> results, bool packs);

 private:
  struct Kernel {
    uint64_t address = 0;
    std::shared_ptr<const std::string> image;
    Imports imports;
    std::vector<Slot> args;
    std::vector<int64_t> values;
    int threads = 1, core_position = -1;
    bool beside = false;
    int64_t elements = 0;   // where this program is one of many sizes: what its threads share
    bool is_small = false;  // too little for more than one thread
  };
  struct Aten {
    c10::OperatorHandle op;
    bool out_form;
    std::vector<c10::IValue> arguments;
    std::vector<std::pair<std::vector<int>, SlotTensor>> tensors;  // path into the arguments, tensor
    std::vector<SlotTensor> results;
    bool packs;  // a convolution that oneDNN computes, of weights that are an input and only read
  };
  struct Step {
    bool is_kernel;
    uint32_t index;
    std::vector<uint32_t> releases;
  };
  static Aten make_aten(const std::string& name, const std::string& overload, std::vector<c10::IValue> arguments,
                        std::vector<std::pair<std::vector<int>, SlotTensor>> tensors, std::vector<SlotTensor> results, bool packs);
  size_t end_of_batch(size_t step) const;  // behind the kernels that may run at the same time as this one
  void run_kernels(size_t begin, size_t end, const Addresses& addresses) const;
  void run_aten(const Aten& aten, Addresses& addresses) const;
  std::vector<Step> steps_;
  std::vector<Kernel> kernels_;
  std::vector<Aten> atens_;
  std::vector<std::string> constants_;
  std::shared_ptr<void> code_;
};

template <class Visit>
void HostProgram::each_integer(Visit&& visit) {
  auto visit_tensor = [&](SlotTensor& tensor) {
    visit(tensor.slot.offset);
    for (int64_t& size : tensor.sizes) visit(size);
    for (int64_t& stride : tensor.strides) visit(stride);
  };
  for (Kernel& kernel : kernels_) {
    for (Slot& slot : kernel.args) visit(slot.offset);
    visit(kernel.elements);
  }
  for (Aten& aten : atens_) {
    for (c10::IValue& value : aten.arguments) {
      if (value.isInt()) {
        int64_t number = value.toInt();
        visit(number);
        value = number;
      } else if (value.isIntList()) {
        std::vector<int64_t> numbers = value.toIntVector();
        for (int64_t& number : numbers) visit(number);
        value = std::move(numbers);
      }
    }
    for (auto& [path, tensor] : aten.tensors) visit_tensor(tensor);
    for (SlotTensor& result : aten.results) visit_tensor(result);
  }
  for (auto& [storage, nbytes] : outputs) visit(nbytes);
  for (int64_t& size : sizes) visit(size);
  for (auto& [block, nbytes] : temporaries) visit(nbytes);
  for (int64_t& bytes : moved) visit(bytes);
}

}  // namespace tiny
