"""Bugs for the simulated group of ranks to find; see tests/cluster/plants.py."""

from plants import Plant


def _in(file: str, *plants: tuple[str, str, str]) -> list[Plant]:
    return [Plant(name, f"client/collective/{file}", old, new) for name, old, new in plants]


PLANTS = [
    *_in(
        "arrivals.cpp",
        (
            "a piece is added where a piece has not left",
            "  return std::ranges::none_of(\n      peers_,",
            "  return true || std::ranges::none_of(\n      peers_,",
        ),
        (
            "a piece is added before those that come first",
            "if (!active.HasArrived(step, piece) || !active.WasGiven(step, piece)) return false;",
            "if (!active.WasGiven(step, piece)) return false;",
        ),
        (
            "what is overwritten is not kept for a stream that breaks",
            "if (target.active->pieces_in_flight == 0) return;",
            "if (target.active != nullptr) return;",
        ),
        (
            "pieces larger than the kernels wait for each other",
            "if (due == Due::kLater) return LandEarly(step, link, target);",
            "if (due == Due::kLater) return false;",
        ),
        (
            "a piece that has come twice is added twice",
            "(target.piece.size() > 0 && progress.Covers(target.piece))",
            "false",
        ),
        (
            "a piece on its way on two streams lands from both",
            "if (step.now - come_at < kStandingTicks * tick_) return false;",
            "if (step.now >= come_at) continue;",
        ),
        (
            "nothing is set aside",
            "if (step.now - in.come_at < tick_) return;",
            "if (step.now >= in.come_at) return;",
        ),
        (
            "a damaged piece is added",
            "if (Xxh3(bytes) != data.payload_check)",
            "if (bytes.size() == 1 && Xxh3(bytes) != data.payload_check)",
        ),
        (
            "pieces of another operation are added",
            "if (theirs != ours.plan || data.type != ours.type || data.op != ours.op)",
            "if (theirs.collective != ours.plan.collective)",
        ),
        (
            "a rank that is gone is waited for",
            "if (NothingComesFrom(rank) && operations_.NextArrival(rank).active != nullptr)",
            "if (NothingComesFrom(rank) && in.gone->message.empty())",
        ),
        (
            "what was set aside of a lost stream stays",
            "std::erase_if(set_aside_, [&](const SetAside& piece)"
            " { return piece.link == made.link; });",
            "",
        ),
    ),
    *_in(
        "peer_streams.cpp",
        (
            "what was not taken is not sent again",
            "flying.has_left = flying.has_left || flying.mark <= stream.left_bytes();\n"
            "    again_.push_back(std::move(flying));",
            "if (flying.active != nullptr) --flying.active->pieces_in_flight;",
        ),
        (
            "an array is let go while a piece of it is under way",
            "while (!stream.in_flight.empty() && stream.in_flight.front().mark <=",
            "while (!stream.in_flight.empty() && 0 * stream.in_flight.front().mark <=",
        ),
        (
            "a silent stream is never given up",
            "return now - since < limit ? std::nullopt : std::optional(limit);",
            "return now >= since ? std::nullopt : std::optional(limit);",
        ),
        (
            "no time is granted to the last stream",
            "if (live == 1) since = std::max(since, oldest->began);",
            "",
        ),
        (
            "room in the peer's memory is used twice",
            "return flying.place && flying.place->Touches(place);",
            "return flying.place && flying.place->end < place.begin;",
        ),
        (
            "a waiting word is owed to a rank that has left",
            "if (!stream.in_flight.empty() || owes) return gone;",
            "if (stream.queued_bytes > 0 || owes) return gone;",
        ),
        (
            "a waiting word goes over one stream",
            "step.actions.emplace_back(exchange::SendWaiting{index_, i, waiting});",
            "step.actions.emplace_back(exchange::SendWaiting{index_, i, waiting});\n    return;",
        ),
    ),
    *_in(
        "exchange_machine.cpp",
        (
            "a piece is sent before what it sums has come",
            "if (!active.HasArrived(transfer.step, piece)) return {};",
            "",
        ),
        (
            "taken pieces are not told",
            "arrivals_.TellUntold(step);",
            "",
        ),
        (
            "only those that are owed something hear who holds up",
            "for (PeerStreams& peer : peers_) peer.SendWaiting(step, blamed);",
            "for (PeerStreams& peer : peers_)\n    if (Owes(peer)) peer.SendWaiting(step, blamed);",
        ),
        (
            "a rank that is late does not excuse itself",
            "peer.SendWaiting(step, {group_.rank, true});",
            "peer.TellLost(step);",
        ),
        (
            "an operation ends while its array is borrowed",
            "while (!operations_.empty() && operations_.oldest().has_ended()) {",
            "while (!operations_.empty() && operations_.oldest().sends_open == 0 &&\n"
            "         operations_.oldest().arrivals_open == 0) {",
        ),
        (
            "nothing is too late",
            "if (oldest() != nullptr && step.now >= blame_.time_up_at(*oldest()))",
            "if (oldest() != nullptr && step.now == Time{})",
        ),
    ),
    *_in(
        "operations.cpp",
        (
            "a piece beyond a gap counts as if there were none",
            "after = ahead.insert(after, piece);",
            "next = piece.end;",
        ),
    ),
    *_in(
        "blame.cpp",
        (
            "what peers say of others is not believed",
            "return heard != heard_.end() ? heard->said : GroupWaiting{peer};",
            "return GroupWaiting{heard != heard_.end() ? peer : peer};",
        ),
        (
            "progress does not put the time limit off",
            "return std::max(oldest.deadline, std::max(taken_at_, given_at_) + group_.timeout);",
            "return oldest.deadline - group_.timeout / 2;",
        ),
    ),
    *_in(
        "piece_work.cpp",
        (
            "the own part of an average is not divided",
            "Divide(operation.type, group_.world_size, operation.plan.count, operation.data);",
            "",
        ),
        (
            "a complete sum of halves is not rounded",
            "if (arrival.completes) RoundAsSent",
            "if (arrival.completes && piece.size() == 0) RoundAsSent",
        ),
    ),
]
