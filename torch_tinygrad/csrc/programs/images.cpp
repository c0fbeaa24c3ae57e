#include "programs/images.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <sys/mman.h>

#include <cstring>

#include "programs/program.h"

namespace tiny {
namespace {

// Pages relative to the code's own are part of instructions on some processors.
#if defined(__aarch64__)
constexpr size_t kAlignment = 4096;
#else
constexpr size_t kAlignment = 64;
#endif

size_t rounded(size_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

uint64_t address_of(const std::string& symbol) {
  void* found = dlsym(RTLD_DEFAULT, symbol.c_str());
#if defined(__linux__)
  // Mathematics, and what a processor lacks instructions for. They are never closed: code that uses them may run at any time.
  static void* const libraries[] = {dlopen("libm.so.6", RTLD_NOW | RTLD_LOCAL), dlopen("libgcc_s.so.1", RTLD_NOW | RTLD_LOCAL)};
  for (void* library : libraries)
    if (found == nullptr && library != nullptr) found = dlsym(library, symbol.c_str());
#endif
  if (found == nullptr) throw UnknownSymbol("tiny: no library has " + symbol + ", which a kernel calls");
  return reinterpret_cast<uint64_t>(found);
}

}  // namespace

void HostProgram::load_images() {
  size_t total = 0;
  for (const Kernel& kernel : kernels_) total += rounded(kernel.image->size());
  if (total == 0) return;
  void* memory = mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  TORCH_CHECK(memory != MAP_FAILED, "tiny: no memory for ", total, " bytes of machine code");
  code_ = std::shared_ptr<void>(memory, [total](void* p) { munmap(p, total); });
  char* next = static_cast<char*>(memory);
  for (Kernel& kernel : kernels_) {
    std::memcpy(next, kernel.image->data(), kernel.image->size());
    for (const auto& [symbol, position] : kernel.imports) {
      const uint64_t address = address_of(symbol);
      TORCH_CHECK(position + sizeof(address) <= kernel.image->size(), "tiny: an address of ", symbol, " outside of the machine code");
      std::memcpy(next + position, &address, sizeof(address));
    }
    kernel.address = reinterpret_cast<uint64_t>(next);
    next += rounded(kernel.image->size());
  }
  mprotect(memory, total, PROT_READ | PROT_EXEC);
  __builtin___clear_cache(static_cast<char*>(memory), next);
}

}  // namespace tiny
