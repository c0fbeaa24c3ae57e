// Where the graph that autograd makes of a call ends: at nodes of the call's own, between it and its arguments' histories.
#pragma once

#include <torch/csrc/autograd/function.h>

namespace tiny {

using torch::autograd::Edge;
using torch::autograd::variable_list;
using NodePtr = decltype(Edge::function);

template <class Pointer, class Made>
Pointer owned_node(Made* made) {
  if constexpr (std::is_constructible_v<Pointer, Made*, void (*)(torch::autograd::Node*)>) {
    return Pointer(made, [](auto* node) { deleteNode(node); });  // before PyTorch 2.13
  } else {
    return Pointer::unsafe_steal_from_new(made);
  }
}

// While these live, the tensors that have a history have one that leads through a gate. Leaves need none.
class Gates {
 public:
  explicit Gates(std::vector<at::Tensor> tensors);
  ~Gates() { restore(); }
  Gates(const Gates&) = delete;
  Gates& operator=(const Gates&) = delete;

  // Gives the tensors their histories back. False if one got another meanwhile, which it keeps.
  bool restore();

  // Gradients of the tensors that are wanted, as of this graph alone.
  variable_list gradients(const torch::autograd::edge_list& roots, const variable_list& given, const std::vector<bool>& wanted,
                          bool keep_graph);

 private:
  std::vector<at::Tensor> tensors_;                // empty once they have their histories back
  torch::autograd::edge_list histories_, inside_;  // of each; as the graph sees them
};

}  // namespace tiny
