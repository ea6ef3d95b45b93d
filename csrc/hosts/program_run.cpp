#include "hosts/program_run.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/error.h"
#include "coll/progress/engine.h"
#include "kernels/convert.h"
#include "kernels/kernels.h"

namespace occl::hosts {
namespace {

coll::Blocks blocks_of(const std::vector<coll::Block>& list) {
  if (list.empty()) return {};
  std::size_t largest = 0;
  for (const coll::Block& block : list) largest = std::max(largest, block.count);
  return {list.front().data, largest, static_cast<std::uint32_t>(list.size()), nullptr};
}

}  // namespace

ProgramRun::ProgramRun(const GroupInfo& info, coll::Group& node, Link& link, InFlight& in_flight)
    : info_(info), node_(node), link_(link), in_flight_(in_flight), work_(node.engine().endpoint()) {}

void ProgramRun::begin(const coll::Operation& op, Program& program) {
  op_ = &op;
  program_ = &program;
  schedule_.emplace(program.stages(), program.windows());
  open_.assign(program.stages() * program.stages(), 0);
  work_.reserve(program.stages() * program.work_bytes());
}

int ProgramRun::awaited() const {
  if (schedule_->done()) return InFlight::kEverywhere;
  const auto needed = schedule_->needs(schedule_->item());
  return needed ? place(needed->stage, needed->window) : InFlight::kEverywhere;
}

bool ProgramRun::advance() {
  bool any = false;
  for (; !schedule_->done(); schedule_->next()) {
    const auto item = schedule_->item();
    const auto needed = schedule_->needs(item);
    if (needed && open_[place(needed->stage, needed->window)] > 0) return any;
    for (const Step& step : program_->steps(item.stage, item.window))
      carry_out(step, item.window, place(program_->ends_with(step, item.stage), item.window));
    any = true;
  }
  return any;
}

std::byte* ProgramRun::at(const Piece& piece, std::uint64_t window) const {
  if (piece.count == 0) return nullptr;
  if (piece.where == Where::work)
    return work_.data() + (window % program_->stages()) * program_->work_bytes() + piece.offset;
  const coll::Collective& c = op_->collective();
  return (piece.where == Where::in ? c.in : c.out).at(piece.block, size_of(c.dtype)).data + piece.offset;
}

void ProgramRun::carry_out(const NodeCollective& step, std::uint64_t window, int place) {
  const auto blocks = [&](const std::vector<Piece>& pieces) {
    std::vector<coll::Block> list;
    for (const Piece& piece : pieces) list.push_back({at(piece, window), piece.count});
    return list;
  };
  std::vector<coll::Block> in = blocks(step.in), out = blocks(step.out);
  coll::Collective c;
  c.kind = step.kind;
  c.dtype = step.dtype;
  c.op = step.op;
  c.root = step.root;
  c.in = blocks_of(in);
  c.out = blocks_of(out);
  if (step.counts.empty()) {
    c.largest = c.count();
    c.volume = coll::kUneven;
  } else {
    coll::set_sizes(c, step.counts);
  }
  c.factor = op_->collective().factor;
  ++open_[place];
  in_flight_.add(node_, std::make_unique<InFlight::NodeOperation>(c, std::move(in), std::move(out)), place,
                 *op_);
}

void ProgramRun::carry_out(const Step& step, std::uint64_t window, int place) {
  if (const auto* node_collective = std::get_if<NodeCollective>(&step)) {
    carry_out(*node_collective, window, place);
  } else if (const auto* message = std::get_if<SendRecv>(&step)) {
    const Piece& piece = message->piece;
    const auto s = info_.channel(Channel::data);
    ++open_[place];
    in_flight_.add(message->send ? link_.send(message->peer, s, at(piece, window), piece.bytes())
                                 : link_.receive(message->peer, s, at(piece, window), piece.bytes()),
                   message->peer, place);
  } else if (const auto* reduce = std::get_if<Reduce>(&step)) {
    std::vector<const void*> from;
    for (const Piece& src : reduce->srcs) from.push_back(at(src, window));
    void* const to[] = {at(reduce->dst, window)};
    kernels::reduce(reduce->dtype, reduce->op, to, from, reduce->dst.count, kernels::Store::cached);
  } else if (const auto* cast = std::get_if<Cast>(&step)) {
    void* const to = at(cast->dst, window);
    const void* const from = at(cast->src, window);
    if (cast->widen)
      kernels::widen(cast->narrow, cast->wide, to, from, cast->src.count);
    else
      kernels::narrow(cast->narrow, cast->wide, to, from, cast->src.count, cast->divisor);
  } else if (const auto* write_count = std::get_if<WriteCount>(&step)) {
    const auto count = static_cast<std::int64_t>(write_count->count);
    std::copy_n(reinterpret_cast<const std::byte*>(&count), sizeof(count), at(write_count->to, window));
  } else if (const auto* check_count = std::get_if<CheckCount>(&step)) {
    std::int64_t count;
    std::copy_n(at(check_count->received, window), sizeof(count), reinterpret_cast<std::byte*>(&count));
    if (count != static_cast<std::int64_t>(check_count->expected))
      fail(Errc::mismatch, info_.describe(check_count->peer), " sends ", count, " elements to rank ",
           info_.rank, ", which expects ", check_count->expected, ", in ", op_->describe(), " #",
           op_->sequence(), " of group ", info_.name);
  }
}

}  // namespace occl::hosts
