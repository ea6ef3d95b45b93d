// A c10d::Backend that sends and receives CPU tensors over MPI, and offers nothing else.
//
//     send(), recv()          progress thread                  network
//     copy, queue ──────────▶ MPI_Isend, MPI_Irecv ──────────▶
//     Work::wait() ◀───────── MPI_Testall, copy ◀────────────
//
// Only the progress thread calls MPI for messages. It starts them in the order of the calls, so MPI delivers
// those of one tag in order. Each engine has such a thread, so MPI must offer MPI_THREAD_MULTIPLE.
//
// MPI works on buffers of this class and never on the tensors. MPI cannot take back a send, nor a receive
// that has matched one. So a tensor would have to stay until the peer ends the message, which a dead peer
// never does. With its own buffers the engine can give up a message at once: Work::abort() leaves the tensor
// alone from then on, and the buffer stays until MPI is done with it.

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kPartBytes = std::size_t{1} << 30;  // MPI counts bytes with an int
constexpr auto kAlert = 500us;     // the thread polls without sleeping until this long after the last event
constexpr auto kNap = 100us;       // and sleeps for this long between later polls
constexpr auto kPatience = 300ms;  // for messages that are under way when the engine ends

std::string text_of(int code) {
  std::string text(MPI_MAX_ERROR_STRING, '\0');
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  return text.substr(0, length);
}

void check(int code, const char* call) { TORCH_CHECK(code == MPI_SUCCESS, call, " failed: ", text_of(code)); }

class Message final : public c10d::Work {
 public:
  Message(bool send, int peer, int tag, at::Tensor tensor)
      : Work(-1, send ? c10d::OpType::SEND : c10d::OpType::RECV),
        send_(send),
        peer_(peer),
        tag_(tag),
        bytes_(tensor.nbytes()),
        tensor_(std::move(tensor)),
        buffer_(new std::byte[bytes_]) {
    if (send_) std::memcpy(buffer_.get(), tensor_.data_ptr(), bytes_);
  }

  /// Ends the message for its caller. Nothing touches the tensor afterwards.
  void abort() override { end("was given up"); }

  // The rest is for the progress thread.

  /// Hands the message to MPI.
  void start(MPI_Comm comm) {
    std::size_t at = 0;
    do {  // both sides divide a message in the same way
      const int part = static_cast<int>(std::min(bytes_ - at, kPartBytes));
      std::byte* data = buffer_.get() + at;
      MPI_Request& request = requests_.emplace_back(MPI_REQUEST_NULL);
      const int code = send_ ? MPI_Isend(data, part, MPI_BYTE, peer_, tag_, comm, &request)
                             : MPI_Irecv(data, part, MPI_BYTE, peer_, tag_, comm, &request);
      if (code != MPI_SUCCESS) return end(text_of(code));
      at += part;
    } while (at < bytes_);
  }

  /// Returns whether MPI is done with the message. Ends the message if so.
  bool poll() {
    if (!send_ && !cancelled_ && isCompleted()) {  // it was given up
      cancelled_ = true;
      for (auto& request : requests_)
        if (request != MPI_REQUEST_NULL) MPI_Cancel(&request);
    }
    std::vector<MPI_Status> statuses(requests_.size());
    int done = 0;
    const int code =
        MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, statuses.data());
    if (code == MPI_SUCCESS && !done) return false;
    if (code != MPI_SUCCESS) {
      const auto failed = std::find_if(statuses.begin(), statuses.end(), [](const MPI_Status& status) {
        return status.MPI_ERROR != MPI_SUCCESS && status.MPI_ERROR != MPI_ERR_PENDING;
      });
      end(text_of(code == MPI_ERR_IN_STATUS && failed != statuses.end() ? failed->MPI_ERROR : code));
      leave();
      return true;
    }
    std::size_t arrived = 0;
    for (const MPI_Status& status : statuses) {
      int count = 0;
      if (!send_ && MPI_Get_count(&status, MPI_BYTE, &count) == MPI_SUCCESS) arrived += count;
    }
    end(send_ || arrived == bytes_ ? "" : c10::str("got ", arrived, " bytes"));
    buffer_.reset();
    return true;
  }

  /// Leaves the buffer to MPI forever.
  void leave() { (void)buffer_.release(); }

 private:
  /// `why` it failed, or empty.
  void end(const std::string& why) {
    {
      std::lock_guard lock(mutex_);
      if (completed_) return;
      completed_ = true;
      if (!why.empty())
        exception_ = std::make_exception_ptr(std::runtime_error(
            c10::str(send_ ? "the send of " : "the receive of ", bytes_, " bytes ", send_ ? "to" : "from",
                     " rank ", peer_, " with tag ", tag_, " over MPI failed: ", why)));
      else if (!send_)
        std::memcpy(tensor_.data_ptr(), buffer_.get(), bytes_);
      tensor_.reset();
    }
    cv_.notify_all();
  }

  const bool send_;
  const int peer_, tag_;
  const std::size_t bytes_;
  at::Tensor tensor_;
  std::unique_ptr<std::byte[]> buffer_;
  std::vector<MPI_Request> requests_;
  bool cancelled_ = false;
};

class Engine final : public c10d::Backend {
 public:
  /// Every rank of MPI_COMM_WORLD must call this at the same time.
  static c10::intrusive_ptr<Engine> make() {
    int initialized = 0, finalized = 0, level = 0;
    MPI_Finalized(&finalized);
    TORCH_CHECK(!finalized, "MPI has been finalized in this process, and cannot be used again");
    MPI_Initialized(&initialized);
    if (!initialized)
      check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
    check(MPI_Query_thread(&level), "MPI_Query_thread");
    TORCH_CHECK(level == MPI_THREAD_MULTIPLE,
                "this MPI does not let each engine call it from its own thread");
    MPI_Comm comm = MPI_COMM_NULL;  // its messages meet no other library's
    check(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
    check(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    int rank = 0, size = 0, *most = nullptr, found = 0;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    MPI_Comm_get_attr(comm, MPI_TAG_UB, &most, &found);
    return c10::make_intrusive<Engine>(comm, rank, size, found ? *most : 32767);
  }

  Engine(MPI_Comm comm, int rank, int size, int last_tag)
      : Backend(rank, size), comm_(comm), last_tag_(last_tag), thread_([this] { run(); }) {}
  ~Engine() override { stop(); }

  const std::string getBackendName() const override { return "mpi"; }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    return submit(true, tensors, to, tag);
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from, int tag) override {
    return submit(false, tensors, from, tag);
  }
  /// Groups call it when they are destroyed. The engine may serve others, so only close() ends it.
  void shutdown() override {}

  /// Gives up what is under way, and ends the thread. Returns how many messages MPI goes on working on.
  std::size_t close() {
    stop();
    return left_;
  }

 private:
  c10::intrusive_ptr<c10d::Work> submit(bool send, const std::vector<at::Tensor>& tensors, int peer,
                                        int tag) {
    TORCH_CHECK(
        tensors.size() == 1 && tensors[0].device().is_cpu() && tensors[0].is_non_overlapping_and_dense(),
        "the MPI engine needs one dense CPU tensor");
    TORCH_CHECK(peer >= 0 && peer < getSize(), "the MPI engine has ranks 0 to ", getSize() - 1, ", not ",
                peer);
    TORCH_CHECK(tag >= 0 && tag <= last_tag_, "this MPI has tags from 0 to ", last_tag_, ", not ", tag);
    auto message = c10::make_intrusive<Message>(send, peer, tag, tensors[0]);
    {
      std::lock_guard lock(mutex_);
      TORCH_CHECK(!stop_, "the MPI engine has ended");
      submitted_.push_back(message);
    }
    wake_.notify_one();
    return message;
  }

  /// The progress thread.
  void run() {
    std::vector<c10::intrusive_ptr<Message>> under_way;
    auto last_event = Clock::now();
    std::optional<Clock::time_point> end;
    while (!end || (!under_way.empty() && Clock::now() < *end)) {
      std::vector<c10::intrusive_ptr<Message>> fresh;
      {
        std::unique_lock lock(mutex_);
        const auto called = [&] { return stop_ || !submitted_.empty(); };
        if (under_way.empty())
          wake_.wait(lock, called);
        else if (Clock::now() - last_event > kAlert)
          wake_.wait_for(lock, kNap, called);
        fresh.swap(submitted_);
        if (stop_ && !end) end = Clock::now() + kPatience;
      }
      for (auto& message : fresh) {
        message->start(comm_);
        under_way.push_back(std::move(message));
      }
      if (end)
        for (const auto& message : under_way) message->abort();
      const auto ended = std::erase_if(under_way, [](const auto& message) { return message->poll(); });
      if (ended > 0 || !fresh.empty()) last_event = Clock::now();
      std::this_thread::yield();
    }
    for (const auto& message : under_way) message->leave();
    left_ = under_way.size();
  }

  void stop() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_one();
    if (thread_.joinable()) thread_.join();
  }

  const MPI_Comm comm_;
  const int last_tag_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<c10::intrusive_ptr<Message>> submitted_;
  bool stop_ = false;
  std::size_t left_ = 0;  // messages that MPI still works on when the thread has ended
  std::thread thread_;    // the last member: it uses the others
};

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  pybind11::module_::import("torch.distributed");  // registers the base class
  pybind11::class_<Engine, c10d::Backend, c10::intrusive_ptr<Engine>>(module, "Engine")
      .def(pybind11::init(&Engine::make), pybind11::call_guard<pybind11::gil_scoped_release>())
      .def("close", &Engine::close, pybind11::call_guard<pybind11::gil_scoped_release>());
  module.def("finalize", [] { check(MPI_Finalize(), "MPI_Finalize"); });
}
