// What a stranger, or a client that knows the secret, may send to a process's socket. No descriptor stays
// open, and an honest client is answered afterwards.
#include "shm/socket.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>

#include "fuzz/target.h"
#include "shm/endpoint.h"

namespace fuzz {

using namespace occl;
using namespace occl::shm;

namespace {

std::shared_ptr<Endpoint> make_endpoint() {
  // The log of refusals is not what is tested here.
  const int log = dup(2), null = open("/dev/null", O_WRONLY | O_CLOEXEC);
  auto table = std::make_shared<RegionTable>();
  table->add(std::make_shared<Region>(Region::create("fuzz", 65536, Access::read_write)));
  auto endpoint = std::make_shared<Endpoint>(table, Endpoint::Config{std::size_t{16} << 20, 0});
  dup2(null, 2);
  int error = 0;
  UniqueFd client = connect_to(endpoint->address().socket, Deadline::after(std::chrono::seconds(10)), error);
  send_packet(client.get(), bytes_of(error), {});
  char hung_up;
  while (recv(client.get(), &hung_up, 1, 0) < 0 && errno == EAGAIN) usleep(100);
  dup2(log, 2);
  close(log), close(null);
  return endpoint;
}

}  // namespace

void one(Input& in) {
  static const auto endpoint = make_endpoint();
  const auto patience = Deadline::after(std::chrono::seconds(10));
  int error = 0;
  const UniqueFd client = connect_to(endpoint->address().socket, patience, error);
  require(static_cast<bool>(client), "anybody may connect");
  Request request;
  const bool knows_secret = in.below(4) != 0;
  request.magic = in.below(8) ? kMagic : in.take<std::uint32_t>();
  request.version = in.below(8) ? kProtocolVersion : in.take<std::uint16_t>();
  request.kind = static_cast<RequestKind>(in.below(8) ? in.below(4) : in.take<std::uint16_t>());
  request.region = static_cast<std::uint32_t>(in.number());
  if (knows_secret)
    request.secret = endpoint->address().secret;
  else
    in.fill(request.secret.data(), request.secret.size());
  std::byte packet[sizeof(request) + 64] = {};
  std::memcpy(packet, &request, sizeof(request));
  const std::size_t bytes = in.below(4) ? sizeof(request) : in.below(sizeof(packet));
  if (in.below(4) == 0) in.fill(packet, sizeof(packet));
  const int given[kMaxDescriptors] = {0, 1, 2, 0};
  const std::size_t descriptors = in.below(4) ? 0 : in.below(kMaxDescriptors + 1);
  send_packet(client.get(), {packet, bytes}, {given, descriptors});
  if (in.below(8) == 0) return;  // hang up without waiting

  Reply reply;
  std::vector<UniqueFd> received;
  if (receive_packet(client.get(), writable_bytes_of(reply), received, patience)) {
    Request sent;
    std::memcpy(&sent, packet, sizeof(sent));
    require(bytes == sizeof(sent) && sent.magic == kMagic && sent.secret == endpoint->address().secret,
            "only a process that knows the secret is answered");
    const bool hello = sent.version == kProtocolVersion && sent.kind == RequestKind::hello;
    require(
        received.size() == (hello ? 4 : reply.status == ReplyStatus::ok && sent.version == kProtocolVersion),
        "only what was asked for is given");
  } else {
    require(received.empty(), "a refusal comes without descriptors");
  }
}

}  // namespace fuzz
