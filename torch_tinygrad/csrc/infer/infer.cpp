// Inference: the CPU's kernels on stand-ins, Meta kernels where those say too little.
#include "infer/infer.h"

#include <ATen/ExpandUtils.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <unordered_map>

#include "infer/distributions.h"
#include "infer/factories.h"
#include "infer/samples.h"
#include "infer/shape_rules.h"
#include "infer/stand_ins.h"
#include "operators/kernels_only.h"
#include "python/python.h"
#include "record/alone.h"
#include "record/known.h"

namespace tiny {
namespace {

// Up to so many bytes of arguments, the CPU's own kernel is asked. The conformance command sets it to 0 (`--large`).
size_t max_bytes_on_cpu() {
  static const size_t most = [] {
    const char* text = std::getenv("TORCH_TINY_ASK_BYTES");
    return text != nullptr ? static_cast<size_t>(std::strtoull(text, nullptr, 10)) : size_t{1} << 20;
  }();
  return most;
}

// The sizes and strides that ATen's iterator gives the result of these operands.
void iterate(const std::vector<at::Tensor>& metas, Shape& shape) {
  at::TensorIteratorConfig config;
  config.check_all_same_dtype(false).check_all_same_device(false).set_check_mem_overlap(false);
  config.declare_static_dtype_and_device(shape.dtype, c10::Device(c10::kMeta));
  config.add_owned_output(at::Tensor());
  for (const auto& meta : metas) config.add_owned_const_input(meta);
  const at::Tensor out = config.build().tensor(0);
  shape.sizes.assign(out.sizes().begin(), out.sizes().end());
  shape.strides.assign(out.strides().begin(), out.strides().end());
}

// Meta kernels written in Python do not always lay results out as ATen's iterator does: this asks the iterator.
void lay_out_as_iterator(const Call& call, const std::vector<at::Tensor>& metas, Inferred& inferred) {
  if (!call.info.iterated || call.info.writes || inferred.returns.size() != 1 || inferred.returns[0].tensors.size() != 1) return;
  auto& result = inferred.returns[0].tensors[0];
  if (result.kind != Inferred::Result::Kind::Fresh || metas.empty()) return;
  Shape iterated = result.shape;
  iterate(metas, iterated);
  if (iterated.sizes == result.shape.sizes) result.shape.strides = iterated.strides;
}

// Meta kernels lay convolutions out contiguously; the CPU follows its input or its weight.
void lay_out_as_convolution(const Call& call, const std::vector<at::Tensor>& metas, Inferred& inferred) {
  const bool backward = call.info.name == "aten::convolution_backward";
  if ((!backward && call.info.name != "aten::convolution") || metas.size() < (backward ? 3 : 2)) return;
  const at::Tensor &input = metas[backward], &weight = metas[backward + 1];
  const int64_t rank = input.dim();
  const auto format = rank == 4 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::ChannelsLast3d;
  if (rank < 4 || (input.suggest_memory_format() != format && weight.suggest_memory_format() != format)) return;
  for (auto& ret : inferred.returns)
    for (auto& result : ret.tensors) {
      if (result.kind != Inferred::Result::Kind::Fresh || static_cast<int64_t>(result.shape.sizes.size()) != rank) continue;
      const auto strides =
          rank == 4 ? c10::get_channels_last_strides_2d(result.shape.sizes) : c10::get_channels_last_strides_3d(result.shape.sizes);
      result.shape.strides.assign(strides.begin(), strides.end());
    }
}

std::vector<int64_t> ints(const c10::IValue& value, size_t count) {
  std::vector<int64_t> list = value.toIntVector();
  if (list.size() == 1) list.resize(count, list[0]);
  return list;
}

// The sizes of a convolution that nothing is to be said against.
std::optional<std::vector<int64_t>> convolved(c10::ArrayRef<c10::IValue> args, const std::vector<at::Tensor>& metas) {
  const at::Tensor &input = metas[0], &weight = metas[1];
  const int64_t groups = args[8].toInt(), spatial = input.dim() - 2;
  if (args[6].toBool() || input.dim() != weight.dim() || spatial < 1 || groups < 1 || input.numel() == 0 || weight.numel() == 0)
    return std::nullopt;
  if (input.size(1) != weight.size(1) * groups || weight.size(0) % groups != 0) return std::nullopt;
  if (input.dtype() != weight.dtype() || (metas.size() > 2 && metas[2].sizes() != at::IntArrayRef{weight.size(0)})) return std::nullopt;
  const auto stride = ints(args[3], spatial), padding = ints(args[4], spatial), dilation = ints(args[5], spatial);
  std::vector<int64_t> sizes = {input.size(0), weight.size(0)};
  for (int64_t d = 0; d < spatial; d++) {
    const int64_t room = input.size(d + 2) + 2 * padding.at(d) - dilation.at(d) * (weight.size(d + 2) - 1) - 1;
    if (room < 0 || stride.at(d) < 1 || padding[d] < 0 || dilation[d] < 1) return std::nullopt;
    sizes.push_back(room / stride[d] + 1);
  }
  return sizes;
}

// What common operators make whose Meta kernels are Python that imports a second's worth of modules when first used, and
// which the CPU's kernels do not say: those would draw, or lie elsewhere in memory than the large call's results do.
std::optional<torch::jit::Stack> made_plainly(const Call& call, c10::ArrayRef<c10::IValue> args, const std::vector<at::Tensor>& metas) {
  const std::string& name = call.info.name;
  auto like = [&](const at::Tensor& t, at::ScalarType dtype) {
    return at::empty_strided(t.sizes(), at::infer_dense_strides(t.sizes(), t.strides()), t.options().dtype(dtype));
  };
  if (name == "aten::native_dropout") return torch::jit::Stack{like(metas[0], metas[0].scalar_type()), like(metas[0], at::kBool)};
  if ((name == "aten::rand_like" || name == "aten::randn_like") && metas.size() == 1) {
    const bool is_plain = args[5].isNone() || args[5].toMemoryFormat() == at::MemoryFormat::Preserve;
    const at::ScalarType dtype = args[1].isNone() ? metas[0].scalar_type() : args[1].toScalarType();
    if (is_plain) return torch::jit::Stack{like(metas[0], dtype)};  // of a type that the distribution has
  }
  if (name == "aten::convolution_backward" && metas.size() == 3) {  // the gradients of what the mask names
    const auto mask = args[10].toBoolList();
    auto gradient = [&](int i, at::IntArrayRef sizes) { return mask[i] ? at::empty(sizes, metas[0].options()) : at::Tensor(); };
    const std::vector<int64_t> bias = args[3].isNone() ? std::vector<int64_t>{metas[0].size(1)} : args[3].toIntVector();
    return torch::jit::Stack{gradient(0, metas[1].sizes()), gradient(1, metas[2].sizes()), gradient(2, bias)};
  }
  if (name == "aten::convolution" && metas.size() >= 2)
    if (const auto sizes = convolved(args, metas)) return torch::jit::Stack{at::empty(*sizes, metas[0].options())};
  return std::nullopt;
}

Inferred infer_from_meta(const Call& call, c10::ArrayRef<c10::IValue> args) {
  const std::vector<at::Tensor> metas = stand_ins(call, c10::Device(c10::kMeta));
  const std::vector<Shape> before = shapes_of(metas);
  torch::jit::Stack stack = with_stand_ins(call, args, metas, c10::Device(c10::kMeta));
  if (call.masked) {
    stack.resize(1);  // written in place: the result is the first argument
  } else if (auto made = made_plainly(call, args, metas)) {
    stack = *std::move(made);
  } else {
    infer_on_meta(call.info, stack);
  }
  Inferred inferred = describe(stack, metas, before);
  lay_out_as_iterator(call, metas, inferred);
  lay_out_as_convolution(call, metas, inferred);
  return inferred;
}

// Whether the CPU's kernel believes what it is given, whatever stands in for it: the gradient of CTC takes it that a table
// has two columns and one more for every label.
bool trusts_arguments(const OpInfo& info) { return info.name.rfind("aten::_ctc_loss_backward", 0) == 0; }

// (data, reduce, lengths, indices, offsets, axis, ...): the axis, from the front, is the last dimension of lengths or offsets.
void check_axis_of_segments(const Call& call, c10::ArrayRef<c10::IValue> args) {
  for (const size_t given : {2, 4}) {
    if (!args[given].isTensor() || !args[given].toTensor().defined()) continue;
    const int64_t dims = args[0].toTensor().dim(), last = args[given].toTensor().dim() - 1, axis = args[5].toInt();
    if (last >= dims || axis != last) ask_cpu(call, args, {});
  }
}

// What must be known before anyone is asked. The largest of each bag, where there are indices and no bag: the CPU's kernel
// reads what is not there. Losses over nothing are refused before all else.
void check_first(const Call& call, c10::ArrayRef<c10::IValue> args) {
  if (call.info.name == "aten::segment_reduce") check_axis_of_segments(call, args);
  if (call.info.name == "aten::_ctc_loss" || call.info.name == "aten::_ctc_loss.Tensor")
    TORCH_CHECK(args[0].toTensor().numel() > 0, "log_probs tensor must not be empty");
  constexpr int64_t kMax = 2;  // (weight, indices, offsets, by frequency, mode, ...)
  if (call.info.name.rfind("aten::_embedding_bag", 0) != 0 || args.size() < 5 || !args[4].isInt() || args[4].toInt() != kMax) return;
  TORCH_CHECK(args[2].toTensor().numel() > 0 || args[1].toTensor().numel() == 0,
              "tiny: embedding_bag has indices but no bag: the CPU's kernel for mode 'max' would end the process");
}

// Operators of our own have Meta kernels that say all there is to say.
bool is_own(const OpInfo& info) { return info.name.rfind("tiny::", 0) == 0; }

// Whether the CPU's kernel may be asked with stand-ins for the arguments.
bool asks_cpu(const Call& call) {
  if ((call.info.random && !call.info.takes_generator) || call.info.dynamic || call.masked || call.tensors.empty()) return false;
  return !trusts_arguments(call.info) && !is_own(call.info);
}

// What Meta kernels refuse, the CPU does in its own words, before it computes.
std::optional<Inferred> in_words_of_cpu(const Call& call, c10::ArrayRef<c10::IValue> args) {
  const Alone alone;
  const KernelsOnly kernels_only;
  std::vector<at::Tensor> tensors;
  try {
    tensors = stand_ins(call, c10::Device(c10::kCPU));
  } catch (const std::exception&) {
    return std::nullopt;  // no memory
  }
  const std::vector<Shape> before = shapes_of(tensors);
  torch::jit::Stack stack = with_stand_ins(call, args, tensors, c10::Device(c10::kCPU));
  call.info.op.callBoxed(&stack);
  return describe(stack, tensors, before);
}

Inferred infer(const Call& call, c10::ArrayRef<c10::IValue> args) {
  check_first(call, args);
  check_distribution(call, args);
  if (call.tensors.empty())
    if (auto inferred = infer_factory(call, args)) return *std::move(inferred);
  const bool asks = asks_cpu(call), is_large = asks && bytes_of(call) > max_bytes_on_cpu();
  if (asks && !is_large) {
    if (auto inferred = infer_from_cpu(call, args)) return *std::move(inferred);
  } else if (is_large) {
    if (auto inferred = infer_from_samples(call, args)) return *std::move(inferred);
  }
  try {
    return infer_from_meta(call, args);
  } catch (const NoMetaKernel&) {
    throw;
  } catch (const std::exception&) {
    if (is_large)
      if (auto inferred = in_words_of_cpu(call, args)) return *std::move(inferred);
    // Factories refuse bad arguments in the CPU's words too.
    if (call.tensors.empty()) {
      const KernelsOnly kernels_only;
      torch::jit::Stack stack = with_stand_ins(call, args, {}, c10::Device(c10::kCPU));
      call.info.op.callBoxed(&stack);
    }
    throw;
  }
}

// Of a call but for its sizes: operator, dtypes, ranks and contiguity of its tensors, types of its numbers.
Hash structure_of(const Call& call, c10::ArrayRef<c10::IValue> args) {
  Hash hash = call.info.hash;
  hash.add(uint64_t{has_unfit_number(call, args)});
  for (const auto& t : call.tensors)
    hash.add((static_cast<uint64_t>(t.scalar_type()) << 16) | (static_cast<uint64_t>(t.dim()) << 1) | (t.is_contiguous() ? 1 : 0));
  for (const auto& value : args) {
    if (!value.isTensor()) {
      hash.add(uint64_t{value.isDouble() ? 1u : value.isBool() ? 2u : value.isComplexDouble() ? 3u : value.isNone() ? 4u : 5u});
      if (value.isInt()) hash.add(static_cast<uint64_t>(value.toInt()));  // a dtype, or a dimension
    } else if (value.toTensor().defined() && !is_tiny(value.toTensor())) {
      const at::Tensor& t = value.toTensor();
      hash.add((static_cast<uint64_t>(t.scalar_type()) << 1) | (t.unsafeGetTensorImpl()->is_wrapped_number() ? 1 : 0));
    }
  }
  return hash;
}

// Calls whose structure the CPU's kernel has taken at other sizes. Where every step has other sizes, what is left to say
// about them is said without computing: by a rule, or by ATen's iterator for what is computed element by element.
class KnownStructures {
 public:
  std::optional<Inferred> infer_from(const Call& call, c10::ArrayRef<c10::IValue> args, const Hash& structure) {
    constexpr size_t kMinBytes = size_t{4} << 10;
    size_t bytes = 0;
    for (const auto& t : call.tensors) bytes += t.nbytes();
    if (call.info.writes || call.masked || bytes < kMinBytes) return std::nullopt;
    const std::shared_ptr<const Inferred> sample = known_.find(structure).value_or(nullptr);
    if (sample == nullptr) return std::nullopt;
    try {
      if (const auto sizes = result_sizes(call.info, call.tensors, args)) return resized(*sample, *sizes);
      if (!is_one_fresh(*sample) || !call.info.iterated) return std::nullopt;
      Inferred inferred = *sample;
      iterate(stand_ins(call, c10::Device(c10::kMeta)), inferred.returns[0].tensors[0].shape);
      return inferred;
    } catch (const std::exception&) {
      return std::nullopt;  // the CPU's kernel has the better words for it
    }
  }
  void add(const Hash& structure, std::shared_ptr<const Inferred> sample) { known_.add(structure, std::move(sample)); }

 private:
  static bool is_one_fresh(const Inferred& inferred) {
    return inferred.returns.size() == 1 && inferred.returns[0].tensors.size() == 1 &&
           inferred.returns[0].tensors[0].kind == Inferred::Result::Kind::Fresh;
  }
  Known<Inferred> known_;
};

}  // namespace

std::shared_ptr<const Inferred> cached_inference(const Call& call, c10::ArrayRef<c10::IValue> args) {
  static std::mutex mutex;
  static std::unordered_map<Hash, std::shared_ptr<const Inferred>, HashHash> cache;
  {
    std::lock_guard<std::mutex> guard(mutex);
    if (auto it = cache.find(call.key); it != cache.end()) return it->second;
  }
  static auto& structures = *new KnownStructures;
  const Hash structure = structure_of(call, args);
  std::shared_ptr<const Inferred> inferred;
  if (auto found = structures.infer_from(call, args, structure)) {
    inferred = std::make_shared<const Inferred>(*std::move(found));
  } else {
    inferred = std::make_shared<const Inferred>(infer(call, args));
    structures.add(structure, inferred);
  }
  std::lock_guard<std::mutex> guard(mutex);
  if (cache.size() > 100000) cache.clear();
  cache.emplace(call.key, inferred);
  return inferred;
}

void ask_cpu(const Call& call, c10::ArrayRef<c10::IValue> args, c10::ArrayRef<at::Tensor> with_values) {
  const Alone alone;
  std::vector<at::Tensor> tensors = stand_ins(call, c10::Device(c10::kCPU));
  for (size_t i = 0; i < tensors.size(); i++) {
    const auto same = [&](const at::Tensor& t) { return t.is_same(call.tensors[i]); };
    if (std::any_of(with_values.begin(), with_values.end(), same)) {
      tensors[i] = call.tensors[i].to(at::kCPU);
    } else {
      fill_storage(tensors[i], 0);
    }
  }
  const KernelsOnly kernels_only;
  torch::jit::Stack stack = with_stand_ins(call, args, tensors, c10::Device(c10::kCPU));
  call.info.op.callBoxed(&stack);
}

}  // namespace tiny
