// The guard: current device, streams and events. All work of a device is in one order, that of recording it. Streams
// therefore have names and nothing else, waiting for one's event needs no command, and what an event stands for has run
// once the trace that was being recorded has.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>
#include <chrono>

#include "device/device.h"
#include "device/types.h"
#include "flush/flush.h"
#include "python/python.h"
#include "record/recorder.h"

namespace tiny {
namespace {

using Clock = std::chrono::steady_clock;
constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

thread_local std::array<c10::StreamId, kMaxDevices> current_streams{};  // 0 is the default stream
std::atomic<c10::StreamId> streams_made{0};

struct Event {
  c10::DeviceIndex device = 0;
  uint64_t trace = 0;  // serial number of the trace that was being recorded; 0: nothing was pending
  Clock::time_point time;
};

// Runs everything pending on the device and waits for it.
void finish(c10::DeviceIndex device, const char* reason) {
  flush(device, reason);
  wait_for_device(device);
}

c10::Stream new_stream(c10::Device device) {
  return c10::Stream(c10::Stream::UNSAFE, {kType, device.has_index() ? device.index() : current_device()}, ++streams_made);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device getDevice() const override { return {kType, current_device()}; }
  void setDevice(c10::Device device) const override { set_current_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { set_current_device_unchecked(device.index()); }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device previous = getDevice();
    if (device.index() >= 0) set_current_device(device.index());
    return previous;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count(); }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    c10::DeviceCapability capability;
    capability.forEachSupportedScalarType([&](c10::ScalarType type) {
      if (lacks(type)) capability.capability_data.capability_bits &= ~(1ULL << static_cast<int>(type));
    });
    return capability;
  }

  c10::Stream getStream(c10::Device device) const override {
    const auto index = device.has_index() ? device.index() : current_device();
    return c10::Stream(c10::Stream::UNSAFE, {kType, index}, current_streams[index]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return new_stream(device); }
  c10::Stream getNewStream(c10::Device device, int) const override { return new_stream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream previous = getStream(stream.device());
    current_streams[previous.device_index()] = stream.id();
    return previous;
  }
  // Nothing pending would ever run by itself, and who asks in a loop waits for that: asking runs it.
  bool queryStream(const c10::Stream& stream) const override { return finish(stream.device_index(), "a query of a stream"), true; }
  void synchronizeStream(const c10::Stream& stream) const override { finish(stream.device_index(), "stream synchronize"); }
  void synchronizeDevice(const c10::DeviceIndex device) const override { finish(device, "synchronize"); }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag flag) const override {
    if (*event == nullptr) *event = new Event;
    Event& recorded = *static_cast<Event*>(*event);
    recorded.device = stream.device_index();
    if (flag == c10::EventFlag::BACKEND_DEFAULT) {  // made with enable_timing: it stands for a time
      finish(recorded.device, "an event with a time");
      recorded.time = Clock::now();
      recorded.trace = 0;
      return;
    }
    DeviceLock lock;
    const Trace& trace = trace_of(recorded.device);
    recorded.trace = trace.nodes.empty() ? 0 : trace.serial;
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void* event) const override { return synchronizeEvent(event), true; }
  void synchronizeEvent(void* event) const override {
    const Event& recorded = *static_cast<Event*>(event);
    const bool pending = [&] {
      DeviceLock lock;
      return recorded.trace != 0 && recorded.trace == trace_of(recorded.device).serial;
    }();
    if (pending) flush(recorded.device, "an event");
    wait_for_device(recorded.device);
  }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    const auto passed = static_cast<Event*>(second)->time - static_cast<Event*>(first)->time;
    return std::chrono::duration<double, std::milli>(passed).count();
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

}  // namespace
}  // namespace tiny
