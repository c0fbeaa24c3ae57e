// Calls into PyTorch's kernels that nothing of the user's may reach into.
#pragma once

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace tiny {

// While one lives, operators of this thread go straight to their kernels: no autograd, no autocast, no modes.
class KernelsOnly {
 public:
  KernelsOnly()
      : keys_(c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
              c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
                  c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot})) {}

 private:
  at::NoGradGuard no_grad_;
  c10::impl::ForceDispatchKeyGuard keys_;
};

}  // namespace tiny
