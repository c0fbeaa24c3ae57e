// torch.profiler: while it records the device's activity, every step of a program and every operator that runs directly is a
// kernel of the device, linked to the flush that ran it.
#define FMT_HEADER_ONLY
#include <kineto/libkineto.h>
#include <kineto/output_base.h>

#include <set>
#include <vector>

#include "device/device.h"
#include "flush/journal.h"

namespace tiny {
namespace {

using libkineto::ActivityType;

thread_local std::vector<uint64_t> correlations;

// As JSON has it: the profiler writes names and texts as they are.
std::string plain(std::string text) {
  for (char& c : text)
    if (c == '"' || c == '\\' || c == '\n') c = '\'';
  return text;
}

// "kernel E_32, 128 bytes, 64 flops: add, mul" is shown as "E_32: add, mul", "aten aten::mm, 128 bytes, 64 flops" as "aten::mm".
std::string name_of(const std::string& line) {
  const size_t begin = line.find(' ') + 1, comma = line.find(", "), colon = line.find(" flops");
  if (comma == std::string::npos || colon == std::string::npos) return line;
  return line.substr(begin, comma - begin) + line.substr(colon + 6);
}

class Session final : public libkineto::IActivityProfilerSession {
 public:
  void start() override {
    correlations.clear();
    watch(Watcher::Profiler, true);
    status_ = libkineto::TraceStatus::RECORDING;
  }
  void stop() override {
    watch(Watcher::Profiler, false);
    notes_ = take_notes(Watcher::Profiler);
    status_ = libkineto::TraceStatus::PROCESSING;
  }
  std::vector<std::string> errors() override { return {}; }
  void processTrace(libkineto::ActivityLogger& logger) override {
    processTrace(logger, [](int32_t) { return nullptr; }, 0, 0);
  }
  void processTrace(libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback linked, int64_t, int64_t) override {
    buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
    buffer_->span = libkineto::TraceSpan(0, 0, "tiny");
    int32_t next = 1;
    for (const FlushNote& flush : notes_) {
      for (const StepNote& step : flush.steps) {
        buffer_->emplace_activity(buffer_->span, ActivityType::CONCURRENT_KERNEL, plain(name_of(step.text)));
        auto& activity = *buffer_->activities.back();
        activity.startTime = step.start;
        activity.endTime = step.end;
        activity.id = next++;
        activity.device = flush.device;
        activity.resource = 0;
        activity.linked = linked(static_cast<int32_t>(flush.correlation));
        activity.addMetadataQuoted("step", plain(step.text));
        activity.addMetadataQuoted("flush for", plain(flush.reason));
        activity.addMetadataQuoted("program", flush.way);
        logger.handleGenericActivity(activity);
      }
    }
    buffer_->gpuOpCount = static_cast<int>(buffer_->activities.size());
  }
  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
    return std::make_unique<libkineto::DeviceInfo>(libkineto::DeviceInfo{0, 0, "tiny", "tiny 0"});
  }
  std::vector<libkineto::ResourceInfo> getResourceInfos() override {
    std::vector<libkineto::ResourceInfo> all;
    for (c10::DeviceIndex i = 0; i < device_count(); i++) all.push_back({0, 0, i, "steps"});
    return all;
  }
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override {
    if (buffer_ == nullptr) buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
    return std::move(buffer_);
  }
  void pushCorrelationId(uint64_t id) override { correlations.push_back(id); }
  void popCorrelationId() override {
    if (!correlations.empty()) correlations.pop_back();
  }

 private:
  std::vector<FlushNote> notes_;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
};

class Profiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return name_; }
  const std::set<ActivityType>& availableActivities() const override { return activities_; }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(const std::set<ActivityType>& wanted, const libkineto::Config&) override {
    if (wanted.count(ActivityType::CONCURRENT_KERNEL) == 0) return nullptr;
    current_correlation = [] { return correlations.empty() ? 0 : correlations.back(); };
    return std::make_unique<Session>();
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(int64_t, int64_t, const std::set<ActivityType>& wanted,
                                                                 const libkineto::Config& config) override {
    return configure(wanted, config);
  }

 private:
  const std::string name_ = "tiny";
  const std::set<ActivityType> activities_ = {ActivityType::CONCURRENT_KERNEL};
};

const bool registered = [] {
  libkineto::api().registerProfilerFactory([] { return std::make_unique<Profiler>(); });
  return true;
}();

}  // namespace
}  // namespace tiny
