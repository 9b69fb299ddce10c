------------------------------ MODULE Conversion -------------------------------
(***************************************************************************)
(* An earlier release split a topic: partition 0 lost a key to partition   *)
(* 1. The topic's states name barriers: a partition to wait for, and a     *)
(* leader epoch up to which to wait. A controller of the new release       *)
(* converts the barriers into lineages while brokers and consumers of both *)
(* releases start and stop. When may the controller do this, so that no    *)
(* consumer continues too early? README.md lists the omissions.            *)
(***************************************************************************)
EXTENDS Integers, FiniteSets

CONSTANTS
  Brokers,
  Starts,     \* the number of broker starts
  Elections,  \* the number of leader changes of partition 0
  Begun,      \* the progress of the split: "asked", "bumped" (the barrier names the epoch), or "done" (partition 1 is led)
  Off         \* the rules that are switched off

VARIABLES
  broker,     \* by broker: "off", or its release "old" or "new"
  level,      \* 2: lineages are finalized
  zero,       \* partition 0: its leader epoch, whether it takes records of the key, the last epoch in which it took them
  one,        \* partition 1: the form of its state ("old" or "new"), its leader epoch (-1: never led; the first is 0), and the
              \* epoch of 0 that it waits for (-1: not known)
  reader,     \* by release: the answer about partition 1 that its consumers have
  left

vars == <<broker, level, zero, one, reader, left>>
Rule(name) == name \notin Off
Unknown == [told |-> FALSE, as_of |-> -1, waits |-> {}]

Init ==
  /\ broker = [b \in Brokers |-> "old"] /\ level = 1
  /\ zero = [epoch |-> IF Begun = "asked" THEN 0 ELSE 1, takes |-> Begun = "asked", last |-> 0]
  /\ one = [form |-> "old", epoch |-> IF Begun = "done" THEN 0 ELSE -1, waits |-> IF Begun = "asked" THEN -1 ELSE 0]
  /\ reader = [release \in {"old", "new"} |-> Unknown]
  /\ left = [starts |-> Starts, elections |-> Elections]

-----------------------------------------------------------------------------
Live == {b \in Brokers : broker[b] # "off"}
Old == {b \in Brokers : broker[b] = "old"}

Stop(b) == broker[b] # "off" /\ broker' = [broker EXCEPT ![b] = "off"] /\ UNCHANGED <<level, zero, one, reader, left>>
\* An old broker does not check the features. If level 2 is finalized, the controller refuses it.
Start(b) ==
  /\ broker[b] = "off" /\ left.starts > 0 /\ left' = [left EXCEPT !.starts = @ - 1]
  /\ \E release \in {"old", "new"} :
       /\ release = "new" \/ level = 1 \/ ~Rule("refused")
       /\ broker' = [broker EXCEPT ![b] = release]
  /\ UNCHANGED <<level, zero, one, reader>>
Finalize ==
  /\ level = 1 /\ Live # {} /\ (Rule("none_is_old") => Old = {})
  /\ level' = 2
  /\ UNCHANGED <<broker, zero, one, reader, left>>
Election ==
  /\ left.elections > 0 /\ left' = [left EXCEPT !.elections = @ - 1]
  /\ zero' = [zero EXCEPT !.epoch = @ + 1, !.last = IF zero.takes THEN @ + 1 ELSE @]
  /\ UNCHANGED <<broker, level, one, reader>>

\* The split continues: 0 gets another epoch and takes no more records of the key, and the barrier gets the previous epoch. In
\* the new release the state of 1 is created with its first leader.
Bump ==
  /\ zero.takes /\ (one.form = "new" \/ level = 1)
  /\ zero' = [zero EXCEPT !.epoch = @ + 1, !.takes = FALSE]
  /\ one' = [one EXCEPT !.waits = zero.epoch]
  /\ UNCHANGED <<broker, level, reader, left>>
Lead ==
  /\ one.epoch = -1 /\ ~zero.takes /\ (one.form = "new" \/ level = 1)
  /\ one' = [one EXCEPT !.epoch = 0]
  /\ UNCHANGED <<broker, level, zero, reader, left>>

\* The entry names the barrier's epoch. If the barrier names no epoch yet, the resize continues first.
Convert ==
  /\ level = 2 /\ one.form = "old"
  /\ IF Rule("unfinished_goes_on") THEN one' = [one EXCEPT !.form = "new", !.epoch = IF @ >= 0 /\ Rule("by_a_bump") THEN @ + 1 ELSE @]
     ELSE one' = [one EXCEPT !.form = "new", !.epoch = IF @ >= 0 THEN @ + 1 ELSE 0]
  /\ UNCHANGED <<broker, level, zero, reader, left>>

-----------------------------------------------------------------------------
(* Consumers ask any broker which partitions lost keys to partition 1. An old broker sees no barrier in the new state. *)
Answer(release, from) ==
  CASE from = "old" /\ release = "old" ->
         [told |-> one.epoch >= 0, as_of |-> one.epoch, waits |-> IF one.form = "old" THEN {one.waits} ELSE {}]
    [] from = "old" -> Unknown
    [] release = "old" -> IF Rule("old_are_told_nothing") THEN Unknown ELSE [told |-> one.epoch >= 0, as_of |-> one.epoch, waits |-> {}]
    \* for a state without a lineage a new broker answers: not known
    [] one.form = "old" -> IF Rule("not_known_before") THEN Unknown ELSE [told |-> one.epoch >= 0, as_of |-> one.epoch, waits |-> {}]
    [] OTHER -> [told |-> one.epoch >= 0, as_of |-> one.epoch, waits |-> {one.waits}]
Ask(release) == \E b \in Live :
  /\ reader' = [reader EXCEPT ![release] = Answer(release, broker[b])]
  /\ UNCHANGED <<broker, level, zero, one, left>>

Next ==
  \/ \E b \in Brokers : Stop(b) \/ Start(b)
  \/ Finalize \/ Election \/ Bump \/ Lead \/ Convert
  \/ \E release \in {"old", "new"} : Ask(release)
Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* Properties *)

\* A consumer whose answer is new enough for the newest records of 1 waits for all records of the key in 0.
Promise == \A release \in {"old", "new"} :
  LET r == reader[release] IN
  r.told /\ r.as_of >= one.epoch /\ one.epoch >= 0 => \E f \in r.waits : f >= zero.last
\* The key has one owner.
OneOwner == one.epoch >= 0 => ~zero.takes
\* When only questions are left and a new broker is live, the split is finished and consumers of the new release get answers.
Rest == level = 2 /\ Old = {} /\ Live # {} /\ ~ENABLED Bump /\ ~ENABLED Lead /\ ~ENABLED Convert
NoHang == Rest => one.epoch >= 0 /\ \A b \in Live : Answer("new", broker[b]).told
=============================================================================
