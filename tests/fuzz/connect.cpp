// Connecting to a process that answers anything, with any descriptors, or dies meanwhile: an error, and
// neither a descriptor nor a mapping stays behind. What it describes with any bytes in its address can be
// printed.
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

#include "base/error.h"
#include "fuzz/target.h"
#include "shm/peer.h"
#include "shm/socket.h"

namespace fuzz {

using namespace occl;
using namespace occl::shm;

namespace {

int memfd(Input& in, std::uint64_t nonce) {
  const int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  const off_t sizes[] = {8192, 4096, 65536, 0, 1, 64, 4097, off_t{1} << 50};
  const off_t size = sizes[in.below(4) ? 0 : in.below(8)];
  if (ftruncate(fd, size) != 0 || pwrite(fd, &nonce, size >= 8 ? 8 : 0, 0) < 0) return fd;
  const int all = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  const int seals[] = {all, all | 0x10, F_SEAL_SHRINK, all | F_SEAL_WRITE, 0, F_SEAL_GROW | F_SEAL_SEAL};
  fcntl(fd, F_ADD_SEALS, seals[in.below(4) ? 0 : in.below(6)]);
  return fd;
}

int descriptor(Input& in, std::uint64_t nonce) {
  int pipes[2];
  switch (in.below(9)) {
    case 0:
      return static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0));
    case 1:
      return open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    case 2:
      return open("/dev/null", O_RDWR | O_CLOEXEC);
    case 3:
      if (pipe2(pipes, O_CLOEXEC) != 0) return -1;
      close(pipes[1]);
      return pipes[0];
    case 4:
      return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    default:
      return memfd(in, nonce);
  }
}

std::size_t open_descriptors() {
  std::size_t n = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder)) ++n;
  closedir(folder);
  return n;
}

struct Answer {
  std::byte bytes[sizeof(Reply) + 16] = {};
  std::size_t size = sizeof(Reply);
  std::vector<UniqueFd> descriptors;
  bool hang_up = false;
};

Answer answer_from(Input& in, std::uint64_t nonce, bool region) {
  Answer answer;
  Reply reply;
  if (in.below(8) == 0) in.fill(&reply, sizeof(reply));
  std::memcpy(answer.bytes, &reply, sizeof(reply));
  if (in.below(8) == 0) answer.size = in.below(sizeof(answer.bytes));
  answer.hang_up = in.below(16) == 15;
  const auto add = [&](int fd) { answer.descriptors.emplace_back(fd); };
  if (in.below(4) && region) {
    add(memfd(in, nonce));
  } else if (in.below(4)) {
    for (int i = 0; i < 3; ++i) add(memfd(in, nonce));
    add(in.below(4) ? static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)) : descriptor(in, nonce));
  } else {
    for (std::size_t n = in.below(kMaxDescriptors + 1); n > 0; --n) add(descriptor(in, nonce));
  }
  return answer;
}

}  // namespace

void one(Input& in) {
  Address address;
  static std::uint64_t number = 0;
  ++number;
  std::memcpy(address.socket.data(), &number, sizeof(number));
  const int pid = getpid();
  std::memcpy(address.socket.data() + 8, &pid, sizeof(pid));
  address.nonce = in.take<std::uint32_t>();
  in.fill(address.host.data(), in.below(65));
  const std::size_t before = open_descriptors();
  {
    // What it answers to each of the first requests; then it is gone.
    std::vector<Answer> answers;
    answers.push_back(answer_from(in, in.below(8) ? address.nonce : 0, false));
    answers.push_back(answer_from(in, 0, true));
    UniqueFd listener = listen_on(address.socket);
    std::atomic<bool> over = false;
    std::thread server([&] {
      for (const Answer& answer : answers) {
        UniqueFd client;
        while (!client) {
          client = UniqueFd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
          if (over) return;
          if (!client) std::this_thread::yield();
        }
        char request[64];
        if (recv(client.get(), request, sizeof(request), 0) <= 0) break;
        if (answer.hang_up) break;
        std::vector<int> given;
        for (const auto& fd : answer.descriptors)
          if (fd) given.push_back(fd.get());
        send_packet(client.get(), {answer.bytes, answer.size}, given);
      }
      listener.reset();
    });
    try {
      const auto deadline = Deadline::after(std::chrono::seconds(10));
      const auto peer = Peer::connect(address, deadline);
      peer->bell().ring();
      require(reinterpret_cast<const std::uint64_t*>(peer->control(0, 64))[0] == address.nonce,
              "the nonce is right");
      const std::size_t bytes = in.number();
      const Ref ref = Ref::unpack(in.number() << in.below(64));
      std::byte* at = peer->resolve(ref, bytes, deadline);
      std::uint64_t sum = 0;
      for (std::size_t i = 0; i < bytes; i += 512) sum += static_cast<std::uint8_t>(at[i]);
      if (bytes) sum += static_cast<std::uint8_t>(at[bytes - 1]);
      require(sum + 1 != 0, "all of it can be read");
    } catch (const Error& error) {
      require(error.code() != Errc::timeout, "nothing waits for the deadline here");
      require(*error.what() != 0, "an error says what");
    }
    over = true;
    server.join();
  }
  require(open_descriptors() == before, "no descriptor stays open");
}

}  // namespace fuzz
