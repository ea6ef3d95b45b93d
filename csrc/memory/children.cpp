#include "memory/children.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <utility>

namespace occl::memory {

void Children::forget_ended() {
  std::erase_if(living_, [](const Child& child) {
    pollfd look{child.ended.get(), 0, 0};  // a negative descriptor reports nothing
    return poll(&look, 1, 0) == 1 && (look.revents & POLLHUP);
  });
}

void Children::before_fork() {
  forget_ended();
  if (int ends[2]; pipe2(ends, O_CLOEXEC) == 0) {
    ours_ = shm::UniqueFd(ends[0]);
    childs_ = shm::UniqueFd(ends[1]);
  }
}

void Children::after_fork_in_parent() {
  childs_.reset();
  living_.push_back({++forks_, std::move(ours_)});
}

void Children::after_fork_in_child() {
  ours_.reset();
  childs_.release();  // open until this process ends
  living_.clear();
}

}  // namespace occl::memory
