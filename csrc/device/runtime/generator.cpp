#include "device/runtime/generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Utils.h>
#include <ATen/core/TensorBase.h>

#include <array>
#include <cstring>
#include <mutex>

namespace occl::device {
namespace {

// Philox engines count in fours, and DTensor rounds the offsets it sets to them.
constexpr std::uint64_t kStep = 4;

struct DevGenerator final : c10::GeneratorImpl {
  explicit DevGenerator(c10::DeviceIndex index)
      : GeneratorImpl(device::device(index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

  void set_current_seed(std::uint64_t seed) override {
    seed_ = seed;
    offset_ = 0;
  }
  std::uint64_t current_seed() const override { return seed_; }
  std::uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }
  void set_offset(std::uint64_t offset) override {
    check_offset(offset);
    offset_ = offset;
  }
  std::uint64_t get_offset() const override { return offset_; }

  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    at::TensorBase state = at::detail::empty_cpu({kStateBytes}, at::kByte, std::nullopt, std::nullopt,
                                                 std::nullopt, std::nullopt);
    auto* bytes = state.mutable_data_ptr<std::uint8_t>();
    std::memcpy(bytes, &seed_, sizeof(seed_));
    std::memcpy(bytes + sizeof(seed_), &offset_, sizeof(offset_));
    return state.getIntrusivePtr();
  }
  void set_state(const c10::TensorImpl& state) override {
    at::detail::check_rng_state(state);
    TORCH_CHECK(state.numel() == kStateBytes, "RNG state is wrong size: a dev generator's state has ",
                kStateBytes, " bytes (seed and offset), and this one has ", state.numel());
    const auto* bytes = static_cast<const std::uint8_t*>(state.data());
    std::uint64_t offset;
    std::memcpy(&offset, bytes + sizeof(seed_), sizeof(offset));
    check_offset(offset);  // before anything changes
    std::memcpy(&seed_, bytes, sizeof(seed_));
    offset_ = offset;
  }

  std::array<std::uint64_t, 2> draw() {
    std::lock_guard lock(mutex_);
    const std::uint64_t offset = offset_;
    offset_ += kStep;
    return {seed_, offset};
  }

 private:
  static constexpr std::int64_t kStateBytes = 16;

  static void check_offset(std::uint64_t offset) {
    TORCH_CHECK(offset % kStep == 0, "offset must be a multiple of ", kStep, ", and not ", offset);
  }

  DevGenerator* clone_impl() const override {
    auto* copy = new DevGenerator(device().index());
    copy->seed_ = seed_;
    copy->offset_ = offset_;
    return copy;
  }

  std::uint64_t seed_ = c10::default_rng_seed_val;
  std::uint64_t offset_ = 0;
};

/// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
std::uint64_t next(std::uint64_t& state) {
  std::uint64_t z = state += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

}  // namespace

const at::Generator& default_generator(c10::DeviceIndex index) {
  static const auto* all = [] {
    auto* generators = new std::vector<at::Generator>;
    for (c10::DeviceIndex i = 0; i < count(); ++i) {
      generators->push_back(at::make_generator<DevGenerator>(i));
      generators->back().seed();
    }
    return generators;
  }();
  return (*all)[static_cast<std::size_t>(resolve(index))];
}

at::Generator new_generator(c10::DeviceIndex index) {
  check_fork();
  return at::make_generator<DevGenerator>(resolve(index));
}

at::Generator cpu_generator_for(const at::Generator& generator) {
  TORCH_CHECK(generator.device().type() == kType, "Expected a 'dev' device type for generator but found '",
              generator.device().type(), "'");
  const auto [seed, offset] = static_cast<DevGenerator*>(generator.unsafeGetGeneratorImpl())->draw();
  // Fills the whole state. Seeding an mt19937 would use 32 bits, so that two operations could get the same
  // numbers, and is slower.
  std::uint64_t state = seed;
  state = next(state) ^ offset;
  at::mt19937_data_pod pod{};
  pod.seed_ = seed;
  pod.left_ = 1;
  pod.seeded_ = true;
  for (std::size_t i = 0; i < pod.state_.size(); i += 2) {
    const std::uint64_t word = next(state);
    pod.state_[i] = static_cast<std::uint32_t>(word);
    pod.state_[i + 1] = static_cast<std::uint32_t>(word >> 32);
  }
  at::mt19937 engine;
  engine.set_data(pod);
  // One for each thread, because making one takes longer than a small operation. If an operation has kept it,
  // the thread gets a new one.
  thread_local at::Generator t_cpu = at::make_generator<at::CPUGeneratorImpl>();
  if (t_cpu.getIntrusivePtr().use_count() > 1) t_cpu = at::make_generator<at::CPUGeneratorImpl>();
  auto* cpu = at::check_generator<at::CPUGeneratorImpl>(t_cpu);
  cpu->set_engine(engine);
  cpu->set_next_float_normal_sample(std::nullopt);
  cpu->set_next_double_normal_sample(std::nullopt);
  return t_cpu;
}

}  // namespace occl::device
