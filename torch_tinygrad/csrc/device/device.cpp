// Hooks and generators: PyTorch's view of the device. No values are touched here.
#include "device/device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Utils.h>
#include <ATen/core/TensorBody.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <pthread.h>

#include <atomic>
#include <mutex>

#include "device/pinned_memory.h"
#include "device/storage.h"
#include "record/recorder.h"

namespace tiny {
namespace {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
std::atomic<c10::DeviceIndex> count{1};
thread_local c10::DeviceIndex current = 0;
std::atomic<bool> in_forked_child{false};

// A counter-based stream: (seed, offset). Its state is those two numbers.
struct Generator final : at::GeneratorImpl {
  explicit Generator(c10::DeviceIndex device)
      : at::GeneratorImpl(c10::Device(kType, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}
  void set_current_seed(uint64_t seed) override { seed_ = seed, offset_ = 0; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom(false));
    return seed_;
  }
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  void set_state(const c10::TensorImpl& state) override {
    at::detail::check_rng_state(state);
    TORCH_CHECK(state.numel() == kStateBytes, "RNG state of tiny has ", kStateBytes, " bytes, got ", state.numel());
    uint64_t values[2];
    std::memcpy(values, state.data_dtype_initialized<uint8_t>(), kStateBytes);
    seed_ = values[0], offset_ = values[1];
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    at::Tensor state = at::detail::empty_cpu({kStateBytes}, at::kByte);
    const uint64_t values[2] = {seed_, offset_};
    std::memcpy(state.mutable_data_ptr(), values, kStateBytes);
    return state.getIntrusivePtr();
  }
  static c10::DeviceType device_type() { return kType; }

 private:
  static constexpr int64_t kStateBytes = 16;
  Generator* clone_impl() const override {
    auto* copy = new Generator(device().index());
    copy->seed_ = seed_, copy->offset_ = offset_;
    return copy;
  }
  uint64_t seed_ = c10::default_rng_seed_val, offset_ = 0;
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return count > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return count; }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_current_device(device); }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const c10::DeviceIndex previous = current;
    set_current_device(device);
    return previous;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return device < 0 ? current : exchangeDevice(device); }
  bool isPinnedPtr(const void* address) const override { return is_pinned(address); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override { return default_generator(device); }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<Generator>(device < 0 ? current : device);
  }
  c10::Device getDeviceFromPtr(void*) const override { return {kType, current}; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override { resize_storage(storage, nbytes); }
};

const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  pthread_atfork(nullptr, nullptr, [] { in_forked_child = recorder_used(); });
  return true;
}();

}  // namespace

c10::DeviceIndex device_count() { return count; }
void set_device_count(c10::DeviceIndex value) { count = value; }
c10::DeviceIndex current_device() { return current; }
void set_current_device(c10::DeviceIndex device) {
  TORCH_CHECK(device >= 0 && device < count, "tiny: invalid device index ", static_cast<int>(device), ": there ",
              count == 1 ? "is 1 device" : "are " + std::to_string(count) + " devices", ". TORCH_TINY_DEVICES sets their number.");
  current = device;
}

void set_current_device_unchecked(c10::DeviceIndex device) noexcept {
  if (device >= 0) current = device;
}

bool forked() { return in_forked_child; }
void check_fork() {
  TORCH_CHECK(!in_forked_child,
              "Cannot use the tiny device in a forked subprocess: its parent already used it. Start processes with the 'spawn' "
              "method (torch.multiprocessing.set_start_method('spawn')), or keep tiny tensors out of the child.");
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  static std::mutex mutex;
  static at::Generator generators[kMaxDevices];
  if (device < 0) device = current;
  TORCH_CHECK(device < count, "tiny: invalid device index ", static_cast<int>(device));
  std::lock_guard<std::mutex> guard(mutex);
  if (!generators[device].defined()) generators[device] = at::make_generator<Generator>(device);
  return generators[device];
}

RandomSlice take_random(const std::optional<at::Generator>& given, c10::DeviceIndex device, int64_t numbers) {
  at::Generator generator = given.has_value() && given->defined() ? *given : default_generator(device);
  TORCH_CHECK(generator.device().type() == kType, "Expected a 'tiny' device type for generator but found '",
              c10::DeviceTypeName(generator.device().type(), true), "'");
  std::lock_guard<std::mutex> guard(generator.mutex());
  auto* impl = generator.get<Generator>();
  const uint64_t offset = impl->get_offset();
  impl->set_offset(offset + static_cast<uint64_t>((numbers + 3) / 4 * 4));
  return {static_cast<int64_t>(impl->current_seed()), static_cast<int64_t>(offset)};
}

}  // namespace tiny
