--------------------------- MODULE StockSequences ---------------------------
(***************************************************************************)
(* The sequences of one stock idempotent producer. A *stream* is what the  *)
(* producer calls a partition. Stream 1 changes its owner in a resize;     *)
(* stream 0 stays in partition 0. A gainer takes the sequences of the      *)
(* stream from its loser, as a control record of its log. A producer may   *)
(* raise its epoch and number its batches that are not acknowledged again  *)
(* from 0 (ADR 50). README.md lists what the model takes as given.         *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
  Plan,     \* the owner of stream 1 in each layout
  Batches,  \* the number of batches of streams 0 and 1
  Window,   \* the most batches in flight, and the number of batches that a leader keeps
  Removal,  \* partitions above 0 that own no stream may be removed
  Faults,   \* election, cancel, bump, tick: the number of each
  Twins,    \* batches 0 and 1 have the same records and timestamps; 1 is made when 0 is old
  Instead,  \* without carries_time, a gainer takes the time of the "records" or of the "hand_over"
  Off       \* the rules that are switched off

VARIABLES
  parts,    \* the partitions
  owners,   \* the owner of stream 1 by layout version
  moves,    \* <<loser, gainer>> or <<>> by layout version
  planned,  \* the number of layouts of the plan that were begun
  acked,    \* by stream: the number of batches that are acknowledged, in order
  bases,    \* by epoch, by stream: the batch that has sequence 0
  raised,   \* by epoch: when the producer raised its epoch to it
  gone,     \* the committed batches of removed partitions
  now,      \* the time; a copy of a batch arrives until one tick after the append; a leader forgets a producer after two
  wrote,    \* by batch of stream 1: when it was first written, or -1
  fatal,    \* the producer got a sequence error that ends it
  faults    \* the faults that are left

vars == <<parts, owners, moves, planned, acked, bases, raised, gone, now, wrote, fatal, faults>>
Rule(name) == name \notin Off
Streams == {0, 1}
Min(a, b) == IF a < b THEN a ELSE b
Largest(S) == IF S = {} THEN 0 ELSE CHOOSE x \in S : \A y \in S : y <= x
Last(s) == s[Len(s)]
Ids == {Plan[i] : i \in DOMAIN Plan} \cup {0}
Version == Len(owners)
Total(s) == Batches[s + 1]

-----------------------------------------------------------------------------
(* What a leader knows of a stream: the epoch, the sequences first..next-1 of it, the last batches (each with the epoch
   by which it is known, and whether this leadership wrote it), and the time of the last append. *)

Nothing == [epoch |-> -1, first |-> 0, next |-> 0, kept |-> <<>>, at |-> 0]
LastKept(kept) == IF Len(kept) > Window THEN SubSeq(kept, Len(kept) - Window + 1, Len(kept)) ELSE kept

\* A producer that was known too long ago begins anew.
Written(old, entry, own) == LET known == IF entry.at - old.at > 2 THEN Nothing ELSE old IN
  [epoch |-> entry.epoch,
   first |-> IF entry.epoch = known.epoch THEN known.first ELSE entry.sequence,
   next |-> entry.sequence + 1,
   kept |-> LastKept(Append(known.kept, [id |-> entry.id, epoch |-> entry.epoch, own |-> own])),
   at |-> entry.at]

After(known, entry, s, own) ==
  CASE entry.kind = "handed" /\ s = 1 /\ (Rule("replaces") \/ known = Nothing) -> entry.known
    [] entry.kind = "batch" /\ (entry.stream = s \/ ~Rule("identity")) -> Written(known, entry, own)
    [] OTHER -> known

RECURSIVE Replayed(_, _)
Replayed(log, s) ==
  IF log = <<>> THEN Nothing ELSE After(Replayed(SubSeq(log, 1, Len(log) - 1), s), Last(log), s, FALSE)
Memory(log) == [s \in Streams |-> Replayed(log, s)]

IsOld(at) == now - at > 1    \* no copy of the batch is on its way, and no batch is a repetition of it in another epoch
IsForgotten(known) == now - known.at > 2
Remembered(known) == IF IsForgotten(known) THEN Nothing ELSE known
Known(x, s) == Remembered(x.memory[s])
Body(id) == IF Twins /\ id = 1 THEN 0 ELSE id

\* The index of the kept batch that a batch repeats under other numbers, or 0. The records decide.
Repeats(known, s, epoch, sequence, id) ==
  LET kept == known.kept
      current == {i \in DOMAIN kept : kept[i].epoch = known.epoch}
      before == IF current = {} THEN Len(kept) + 1 ELSE CHOOSE i \in current : \A j \in current : i <= j
      candidates ==
        CASE epoch > known.epoch /\ sequence = 0 -> DOMAIN kept
          [] epoch > known.epoch /\ sequence > 0 ->
               {i \in DOMAIN kept : i > sequence /\ ~kept[i - 1].own /\ acked[s] = id /\ Rule("taken_elsewhere")}
          [] epoch = known.epoch /\ sequence = known.next -> {Largest(current) + 1} \cap DOMAIN kept
          [] epoch = known.epoch /\ sequence > known.next /\ acked[s] = id /\ Rule("taken_late") ->
               {i \in {Largest(current) + 1 + sequence - known.next} \cap DOMAIN kept : ~kept[i - 1].own}
          [] epoch = known.epoch /\ sequence < known.first -> {before - (known.first - sequence)} \cap DOMAIN kept
          [] OTHER -> {}
  IN IF IsOld(known.at) THEN 0 ELSE
     Largest({i \in candidates : kept[i].id >= 0 /\ Body(kept[i].id) = Body(id)})

\* A batch under new numbers may follow a run that an earlier leader took into its epoch.
FollowsRun(known, s, sequence, id) ==
  /\ Rule("taken_elsewhere") /\ acked[s] = id
  /\ Len(known.kept) >= sequence /\ known.kept # <<>> /\ ~Last(known.kept).own
\* The same if this leader has taken the epoch since, from a late copy of an earlier batch.
FollowsRest(known, s, sequence, id) ==
  LET current == {i \in DOMAIN known.kept : known.kept[i].epoch = known.epoch} IN
  /\ Rule("taken_late") /\ acked[s] = id /\ known.kept # <<>> /\ ~Last(known.kept).own
  /\ sequence > known.next /\ Len(known.kept) - Largest(current) = sequence - known.next

-----------------------------------------------------------------------------
(* Partitions *)

Absent == [exists |-> FALSE, stored |-> 0, applied |-> 0, log |-> <<>>, other |-> <<>>, hw |-> 0, followed |-> TRUE,
           since |-> 0, memory |-> Memory(<<>>)]
Created(v) == [Absent EXCEPT !.exists = TRUE, !.stored = v, !.applied = v, !.since = v]

LastGain(p, before) ==
  Largest({v \in 1..parts[p].applied : moves[v] # <<>> /\ moves[v][2] = p /\ parts[p].since <= v /\ v < before})
Has(x, v) == \E i \in DOMAIN x.log : x.log[i].kind = "handed" /\ x.log[i].version = v
\* The hand-over of the last gain before a version, if the partition has not got it yet; 0: there is none.
Due(p, before) ==
  IF ~parts[p].exists THEN 0 ELSE LET v == LastGain(p, before) IN IF v # 0 /\ Has(parts[p], v) THEN 0 ELSE v
Any == Version + 1

WithEntry(x, entry) ==
  [x EXCEPT !.log = Append(@, entry), !.memory = [s \in Streams |-> After(@[s], entry, s, TRUE)]]
Put(p, x) == parts' = [parts EXCEPT ![p] = x]
Controller == <<owners, moves, planned>>
Producer == <<acked, bases, raised, fatal, wrote>>
Use(name) == faults[name] > 0 /\ faults' = [faults EXCEPT ![name] = @ - 1]

Init ==
  /\ parts = [p \in Ids |-> IF p \in {Plan[1], 0} THEN Created(1) ELSE Absent]
  /\ owners = <<Plan[1]>> /\ moves = << <<>> >> /\ planned = 1
  /\ acked = [s \in Streams |-> 0] /\ bases = << [s \in Streams |-> 0] >> /\ raised = <<0>>
  /\ gone = {} /\ now = 0 /\ wrote = [i \in 0..(Total(1) - 1) |-> -1] /\ fatal = FALSE /\ faults = Faults

Settled == \A p \in Ids : parts[p].exists => parts[p].stored = Version /\ parts[p].applied = Version

Goal ==
  /\ planned < Len(Plan) /\ Settled /\ parts[Last(owners)].exists
  /\ LET owner == Plan[planned + 1] IN
     /\ owners' = Append(owners, owner)
     /\ moves' = Append(moves, IF owner = Last(owners) THEN <<>> ELSE <<Last(owners), owner>>)
  /\ planned' = planned + 1
  /\ UNCHANGED <<parts, Producer, gone, now, faults>>

\* A resize is cancelled before the gainer was written.
Cancel ==
  /\ Use("cancel") /\ Last(moves) # <<>>
  /\ LET gainer == parts[Last(moves)[2]] IN ~(gainer.exists /\ gainer.stored = Version)
  /\ owners' = Append(owners, Last(moves)[1]) /\ moves' = Append(moves, <<>>)
  /\ UNCHANGED <<parts, planned, Producer, gone, now>>

IsGainer(p) == Last(moves) # <<>> /\ Last(moves)[2] = p
MayWrite(p) ==
  IsGainer(p) /\ Rule("losers_first") =>
    parts[Last(moves)[1]].stored = Version /\ parts[Last(moves)[1]].applied = Version

Bump(p) ==
  /\ MayWrite(p)
  /\ \/ parts[p].exists /\ parts[p].stored < Version /\ Put(p, [parts[p] EXCEPT !.stored = Version])
     \/ ~parts[p].exists /\ IsGainer(p) /\ Put(p, Created(Version))
  /\ UNCHANGED <<Controller, Producer, gone, now, faults>>

Apply(p) ==
  /\ parts[p].exists /\ parts[p].applied < parts[p].stored
  /\ Put(p, [parts[p] EXCEPT !.applied = parts[p].stored])
  /\ UNCHANGED <<Controller, Producer, gone, now, faults>>

Follow(p) ==
  LET x == parts[p] IN
  /\ x.exists /\ (x.hw < Len(x.log) \/ ~x.followed \/ x.log # x.other)
  /\ Put(p, [x EXCEPT !.other = x.log, !.hw = Len(x.log), !.followed = TRUE])
  /\ UNCHANGED <<Controller, Producer, gone, now, faults>>

\* The other replica leads. The deposed one keeps its tail until it has followed.
Elect(p) ==
  LET x == parts[p]
      log == [i \in DOMAIN x.other |-> IF x.other[i].kind = "handed" /\ ~Rule("in_log")
                                       THEN [x.other[i] EXCEPT !.known = Nothing] ELSE x.other[i]]
  IN
  /\ x.exists /\ Use("election")
  /\ Put(p, [x EXCEPT !.log = log, !.other = x.log, !.applied = x.stored, !.hw = Min(x.hw, Len(log)),
                      !.followed = FALSE, !.memory = Memory(log)])
  /\ UNCHANGED <<Controller, Producer, gone, now>>

-----------------------------------------------------------------------------
(* Hand-over *)

Handed(x) ==
  LET all == IF Rule("carries_taken") THEN Known(x, 1)
             ELSE Remembered(Replayed(x.log, 1))
      kept == [i \in DOMAIN all.kept |->
                [id |-> IF Rule("carries_run") THEN all.kept[i].id ELSE -1, epoch |-> all.kept[i].epoch, own |-> FALSE]]
      current == SelectSeq(kept, LAMBDA k : k.epoch = all.epoch)
      chosen == IF Rule("carries_earlier") THEN kept ELSE current
      most == IF Rule("all_kept") THEN Len(chosen) ELSE Min(1, Len(chosen))
  IN IF all = Nothing THEN Nothing ELSE
     [all EXCEPT
       !.kept = SubSeq(chosen, Len(chosen) - most + 1, Len(chosen)),
       !.first = IF Rule("carries_first") THEN @ ELSE all.next - Min(most, Len(current)),
       !.at = IF Rule("carries_time") THEN @ ELSE IF Instead = "records" THEN -9 ELSE now]

HandOver(p, v) ==
  LET loser == moves[v][1]
      y == parts[loser]
      Record(known) == Put(p, WithEntry(parts[p], [kind |-> "handed", version |-> v, known |-> known]))
  IN
  /\ Rule("hand_over")
  /\ IF ~y.exists
     THEN /\ ~(Rule("removal_waits") /\ Rule("removal_commit"))
          /\ Record(Nothing)
     ELSE /\ y.applied >= v
          /\ Rule("chain") => Due(loser, IF Rule("chain_ends") THEN v ELSE Any) = 0
          /\ Rule("committed") => y.hw = Len(y.log)
          /\ Rule("followed") => y.followed
          /\ Record(Handed(y))
  /\ UNCHANGED <<Controller, Producer, gone, now, faults>>

\* The gainers of a partition have its sequences.
MayRemove(p) ==
  Rule("removal_waits") => \A v \in 1..Version :
    moves[v] # <<>> /\ moves[v][1] = p /\ parts[p].since <= v /\ parts[moves[v][2]].exists =>
      LET y == parts[moves[v][2]]
          at == {i \in DOMAIN y.log : y.log[i].kind = "handed" /\ y.log[i].version = v}
      IN IF at = {} THEN LastGain(moves[v][2], Any) # v ELSE Rule("removal_commit") => \A i \in at : y.hw >= i

Batch(p, i, entry) == <<entry.stream, entry.id, entry.version, i, p>>
Committed(p) ==
  {Batch(p, i, parts[p].log[i]) : i \in {j \in 1..parts[p].hw : parts[p].log[j].kind = "batch"}}

Remove(p) ==
  /\ Removal /\ p > 0 /\ parts[p].exists /\ Settled /\ Last(owners) # p /\ MayRemove(p)
  /\ Put(p, Absent) /\ gone' = gone \cup Committed(p)
  /\ UNCHANGED <<Controller, Producer, now, faults>>

-----------------------------------------------------------------------------
(* The producer. A copy of a batch may arrive at any leader at any time, also twice, under the numbers of any epoch in
   which it was sent. In an epoch everything was sent that the window allowed. *)

Sent(s, e) ==
  LET until == IF e = Len(bases) THEN acked[s] ELSE bases[e + 1][s]
  IN bases[e][s]..(Min(until + Window, Total(s)) - 1)
Travels(s, e, id) ==
  /\ e < Len(bases) => ~IsOld(raised[e + 1])
  /\ s = 1 =>
           /\ wrote[id] >= 0 => ~IsOld(wrote[id])
           /\ Twins /\ id = 1 /\ wrote[1] < 0 => acked[1] >= 1 /\ IsOld(wrote[0])

Arrive(p, s, e, id) ==
  LET x == parts[p]
      known == Known(x, s)
      sequence == id - bases[e][s]
      again == Repeats(known, s, e, sequence, id)
      \* where the log has the batch, or what it knows of it
      places == {i \in DOMAIN x.log :
                  /\ x.log[i].kind = "batch" /\ (x.log[i].stream = s \/ ~Rule("identity"))
                  /\ (x.log[i].id = id /\ x.log[i].stream = s) \/ (x.log[i].epoch = e /\ x.log[i].sequence = sequence)}
      records == {i \in DOMAIN x.log : x.log[i].kind = "handed" /\ Rule("in_log")}
      isDurable == x.hw >= Largest(IF places = {} THEN records ELSE places)
      isOwner == IF s = 0 THEN p = 0 ELSE
                 owners[x.applied] = p \/ (~Rule("own_layout") /\ Last(owners) = p)
      isReady == s = 1 /\ Rule("hand_over") /\ Rule("before_first") => Due(p, Any) = 0
      isDuplicate == e = known.epoch /\ known.first <= sequence /\ sequence < known.next
      isNext ==
        CASE known = Nothing -> sequence = 0 \/ acked[s] >= id \/ ~Rule("strict_first")
          [] e = known.epoch -> sequence = known.next \/ FollowsRest(known, s, sequence, id)
          [] e > known.epoch -> sequence = 0 \/ FollowsRun(known, s, sequence, id)
          [] OTHER -> FALSE
      \* the answers of an earlier epoch are awaited before the epoch is raised, or are lost
      Acknowledge == e = Len(bases) /\ acked[s] = id /\ isDurable /\ acked' = [acked EXCEPT ![s] = id + 1] /\ UNCHANGED <<parts, fatal, wrote>>
      Take == /\ Put(p, [x EXCEPT !.memory[s] =
                          [known EXCEPT !.epoch = e, !.first = IF e > known.epoch THEN sequence ELSE @,
                                        !.next = sequence + 1, !.kept[again].epoch = e]])
              /\ UNCHANGED <<acked, fatal, wrote>>
  IN
  /\ x.exists /\ Travels(s, e, id)
  /\ CASE isDuplicate -> Acknowledge
       [] again > 0 /\ e = known.epoch /\ sequence < known.first -> Acknowledge
       [] again > 0 -> Take
       [] ~isOwner \/ ~isReady -> FALSE
       [] isNext ->
            /\ Put(p, WithEntry(x, [kind |-> "batch", stream |-> s, id |-> id, epoch |-> e, sequence |-> sequence,
                                    version |-> x.applied, at |-> now]))
            /\ wrote' = IF s = 1 /\ Faults.tick > 0 /\ wrote[id] < 0 THEN [wrote EXCEPT ![id] = now] ELSE wrote
            /\ UNCHANGED <<acked, fatal>>
       \* the first batch without an acknowledgement gets a sequence error
       [] e = Len(bases) /\ known # Nothing /\ acked[s] = id -> fatal' = TRUE /\ ~fatal /\ UNCHANGED <<parts, acked, wrote>>
       [] OTHER -> FALSE
  /\ UNCHANGED <<Controller, bases, raised, gone, now, faults>>

Renumber ==
  /\ Use("bump") /\ bases' = Append(bases, acked) /\ raised' = Append(raised, now)
  /\ UNCHANGED <<parts, Controller, acked, fatal, wrote, gone, now>>

\* A batch is acknowledged before the producer's time for it is over.
Tick ==
  /\ Use("tick") /\ now' = now + 1
  /\ \A id \in DOMAIN wrote : wrote[id] >= 0 /\ id >= acked[1] => now + 1 - wrote[id] <= 1
  /\ UNCHANGED <<parts, Controller, Producer, gone>>

Next ==
  \/ Goal \/ Cancel \/ Renumber \/ Tick
  \/ \E p \in Ids :
       \/ Bump(p) \/ Apply(p) \/ Follow(p) \/ Elect(p) \/ Remove(p)
       \/ \E v \in {Due(p, b) : b \in 1..Any} \ {0} : HandOver(p, v)
       \/ \E s \in Streams : \E e \in DOMAIN bases : \E id \in Sent(s, e) : Arrive(p, s, e, id)
Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* Properties *)

All == gone \cup UNION {Committed(p) : p \in Ids}
NoDuplicate == \A a, b \in All : a[1] = b[1] /\ a[2] = b[2] => a = b
NoLoss == \A s \in Streams : \A id \in 0..(acked[s] - 1) : \E a \in All : a[1] = s /\ a[2] = id
Before(a, b) == a[3] < b[3] \/ (a[3] = b[3] /\ a[4] < b[4])
Order == \A a, b \in All : a[1] = b[1] /\ b[2] = a[2] + 1 => Before(a, b)
NoSequenceError == ~fatal
\* The second twin is not made if the first is not old when the time ends.
NoHang == ENABLED Next \/ (\A s \in Streams : acked[s] = Total(s)) \/ (Twins /\ acked[1] = 1 /\ ~IsOld(wrote[0]))
=============================================================================
