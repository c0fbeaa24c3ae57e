#include "isolation.h"

#include "compile.h"
#include "program.h"
#include "python.h"

namespace tiny {
namespace {

template <class F>
void each_storage(const Trace& trace, uint32_t begin, uint32_t end, const F& f) {
  for (uint32_t r = begin; r < end; r++)
    if (trace.refs[r].kind == ArgRef::Kind::Region) f(*trace.storages[trace.regions[trace.refs[r].index].storage]);
}

class Isolation {
 public:
  Isolation(Trace& trace, const std::string& message) : trace_(trace), message_(message), all_(trace.nodes) { trace.keep_all = true; }
  ~Isolation() {
    trace_.keep_all = false;
    trace_.nodes = all_;
  }
  Isolation(const Isolation&) = delete;
  Isolation& operator=(const Isolation&) = delete;

  void run(size_t begin, size_t end) {
    if (begin == end) return;
    trace_.nodes.clear();
    for (size_t n = begin; n < end; n++) {
      if (reads_lost(all_[n])) {
        lose(all_[n]);
      } else {
        trace_.nodes.push_back(all_[n]);
      }
    }
    if (trace_.nodes.empty()) return;
    try {
      compile(trace_, {}, {})->run(trace_, trace_.numbers);
    } catch (const CompileFailed& failure) {
      if (failure.passing) throw;
      if (end - begin == 1) return lose(all_[begin]);
      const size_t middle = begin + (end - begin) / 2;
      run(begin, middle);
      run(middle, end);
    }
  }

 private:
  bool reads_lost(const Node& node) {
    bool lost = false;
    each_storage(trace_, node.args, node.outs, [&](Storage& storage) { lost |= !storage.lost.empty(); });
    return lost;
  }
  void lose(const Node& node) {
    each_storage(trace_, node.outs, node.end, [&](Storage& storage) {
      storage.contents = Contents::unknown();
      if (storage.buffer == nullptr) storage.lost = message_;
    });
  }

  Trace& trace_;
  const std::string message_;
  const std::vector<Node> all_;
};

}  // namespace

void run_in_parts(Trace& trace, const std::string& message) { Isolation(trace, message).run(0, trace.nodes.size()); }

void lose_all(Trace& trace, const std::string& message) {
  for (const Node& node : trace.nodes)
    each_storage(trace, node.outs, node.end, [&](Storage& storage) {
      storage.contents = Contents::unknown();
      storage.lost = message;
    });
}

}  // namespace tiny
