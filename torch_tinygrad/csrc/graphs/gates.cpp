#include "graphs/gates.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <unordered_set>

namespace tiny {
namespace {

using torch::autograd::edge_list;
using torch::autograd::Node;

struct Gate final : Node {
  explicit Gate(const Edge& edge) : Node(edge_list{edge}) {}
  variable_list apply(variable_list&& gradients) override { return std::move(gradients); }
  std::string name() const override { return "TinyGate"; }
};

// While a graph is run by itself: it leads nowhere else, though one argument may have come from another, and hooks of tensors
// do not run yet, but once, where their gradients arrive.
class Alone {
 public:
  Alone(const edge_list& inside, const edge_list& histories) {
    for (size_t i = 0; i < inside.size(); i++)
      if (seen_.insert(inside[i].function.get()).second) held_.push_back({inside[i].function.get(), inside[i] != histories[i]});
    swap();
  }
  ~Alone() { swap(); }
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;

 private:
  struct Held {
    Node* node;
    bool is_gate;
    edge_list edges;
    std::decay_t<decltype(std::declval<Node&>().tensor_pre_hooks())> tensor;
    std::decay_t<decltype(std::declval<Node&>().retains_grad_hooks())> retains;
  };
  void swap() {
    for (Held& held : held_) {
      if (held.is_gate) {
        std::swap(held.node->next_edges(), held.edges);
      } else {
        std::swap(held.node->tensor_pre_hooks(), held.tensor);
        std::swap(held.node->retains_grad_hooks(), held.retains);
      }
    }
  }
  std::unordered_set<Node*> seen_;
  std::vector<Held> held_;
};

}  // namespace

Gates::Gates(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {
  for (const at::Tensor& t : tensors_) {
    histories_.push_back(torch::autograd::impl::gradient_edge(t));
    inside_.push_back(histories_.back());
    if (t.is_leaf()) continue;
    auto* gate = new Gate(histories_.back());
    inside_.back() = {owned_node<NodePtr>(gate), gate->add_input_metadata(t)};
    torch::autograd::impl::set_gradient_edge(t, inside_.back());
  }
}

bool Gates::restore() {
  bool same = true;
  for (size_t i = 0; i < tensors_.size(); i++) {
    if (!(torch::autograd::impl::gradient_edge(tensors_[i]) == inside_[i])) {
      same = false;
    } else if (inside_[i] != histories_[i]) {
      torch::autograd::impl::set_gradient_edge(tensors_[i], histories_[i]);
    }
  }
  tensors_.clear();
  return same;
}

variable_list Gates::gradients(const edge_list& roots, const variable_list& given, const std::vector<bool>& wanted, bool keep_graph) {
  edge_list edges;
  for (size_t i = 0; i < wanted.size(); i++)
    if (wanted[i]) edges.push_back(inside_[i]);
  variable_list results(wanted.size());
  if (roots.empty() || edges.empty()) return results;
  const Alone alone(inside_, histories_);
  auto caught = torch::autograd::Engine::get_default_engine().execute(roots, given, keep_graph, at::GradMode::is_enabled(),
                                                                      /*accumulate_grad=*/false, edges);
  for (size_t i = 0, k = 0; i < wanted.size(); i++)
    if (wanted[i]) results[i] = std::move(caught[k++]);
  return results;
}

}  // namespace tiny
