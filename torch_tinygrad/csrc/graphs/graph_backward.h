// The one autograd node that stands for a graph of torch.compile's.
#pragma once

#include <torch/csrc/autograd/function.h>

#include "graphs/gates.h"
#include "graphs/recording.h"

namespace tiny {

// What a node asks of its graph.
struct GraphOwner {
  virtual ~GraphOwner() = default;
  // Runs the graph operator by operator. If it does as it did, `storages` are those of the recording's part.
  virtual pybind11::tuple run(const pybind11::tuple& arguments, const Recording& as, std::vector<StoragePtr>& storages) = 0;
  // A forward pass and a backward pass through it, as they were recorded.
  virtual void keep(std::shared_ptr<Recording> recording, std::shared_ptr<BackwardRecording> backward) = 0;
  // No call is kept any more.
  virtual void give_up() = 0;
};

// Of a call that was recorded operator by operator: the graph that autograd made is inside, and what a backward pass through
// it records is kept. Of a call that was appended as a whole: nothing is inside, and what was kept is appended.
class GraphBackward final : public torch::autograd::Node {
 public:
  // `arguments` are undefined where they are numbers.
  static std::pair<NodePtr, GraphBackward*> make(std::shared_ptr<GraphOwner> owner, std::shared_ptr<Recording> recording,
                                                 std::vector<at::Tensor> arguments);
  ~GraphBackward() override { let_go(); }

  // Gives each result that needs a gradient a tensor that leads here; `storages` are numbered as in the recording's part.
  void hold_recorded(std::vector<at::Tensor>& results, std::vector<StoragePtr> storages, std::shared_ptr<Gates> gates);
  void hold_appended(const std::vector<at::Tensor>& results, const std::vector<StoragePtr>& storages);

  variable_list apply(variable_list&& gradients) override;
  void release_variables() override;
  std::string name() const override { return "TinyGraphBackward"; }

 private:
  struct Saved {
    at::Tensor result;  // and its version then
    int64_t version = 0;
    StoragePtr storage;  // of what is in between
  };

  // What autograd made of a call that was recorded.
  struct Inside {
    std::shared_ptr<Gates> gates;        // of its arguments
    torch::autograd::edge_list results;  // those that need gradients
    std::vector<StoragePtr> storages;    // by number
  };

  GraphBackward(std::shared_ptr<GraphOwner> owner, std::shared_ptr<Recording> recording, std::vector<at::Tensor> arguments);
  void let_go();
  StoragePtr storage_read(size_t local) const;
  variable_list apart(variable_list gradients) const;
  std::shared_ptr<BackwardRecording> find(variable_list& gradients, const std::vector<bool>& wanted) const;
  variable_list append(const BackwardRecording& recording, const variable_list& gradients) const;
  variable_list differentiable(const variable_list& gradients, const std::vector<bool>& wanted);
  bool is_modified() const;
  void take_in(Inside inside);
  Inside run_again();
  variable_list run_inside(const variable_list& gradients, const std::vector<bool>& wanted);

  std::shared_ptr<GraphOwner> owner_;
  std::shared_ptr<Recording> recording_;
  std::vector<at::Tensor> arguments_;
  std::vector<int64_t> versions_;
  bool is_appended_ = false, is_released_ = false;
  bool is_shared_ = false;    // others may go through what is inside
  std::vector<Saved> saved_;  // of one that was appended, by number of the storage
  Inside inside_;             // of one that was recorded
};

}  // namespace tiny
