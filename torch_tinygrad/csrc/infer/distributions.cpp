#include "infer/distributions.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "operators/kernels_only.h"

namespace tiny {

// The distribution is asked for one number, with a generator that nobody else has; dropout's scale as the CPU applies it.
void check_distribution(const Call& call, c10::ArrayRef<c10::IValue> args) {
  if (!call.info.random || call.info.takes_generator || call.tensors.empty()) return;
  auto argument = [&](const char* name) {
    const auto position = call.info.op.schema().argumentIndexWithName(name);
    return position ? args[*position] : c10::IValue();
  };
  auto draws = [&](const char* name) { return call.info.name.rfind(name, 0) == 0; };
  const at::Tensor& like = call.tensors[0];
  const c10::IValue dtype = argument("dtype"), high = argument("high");
  const at::Tensor one =
      at::empty({std::min<int64_t>(like.numel(), 1)}, at::TensorOptions(dtype.isNone() ? like.scalar_type() : dtype.toScalarType()));
  const KernelsOnly kernels_only;
  const at::Generator generator = at::detail::createCPUGenerator();
  if (draws("aten::rand_like")) one.uniform_(0, 1, generator);
  if (draws("aten::randn_like")) one.normal_(0, 1, generator);
  if (draws("aten::randint_like") && high.isInt()) {
    const c10::IValue low = argument("low");
    one.random_(low.isInt() ? low.toInt() : 0, high.toInt(), generator);
  }
  if (draws("aten::native_dropout") && (args[2].isNone() || args[2].toBool())) one.div_(1 - args[1].toDouble());
}

}  // namespace tiny
