------------------------------ MODULE Conversion -------------------------------
(***************************************************************************)
(* A topic that a release before split: one partition, 0, lost a key to    *)
(* partition 1. Its states name barriers (which partition to wait for, up  *)
(* to which leader epoch), and a controller of the new release converts    *)
(* them into lineages, while brokers and consumers of both releases start  *)
(* and stop. When may it, so that no consumer goes on too early?           *)
(* README.md says what is left out.                                        *)
(***************************************************************************)
EXTENDS Integers, FiniteSets

CONSTANTS
  Brokers,
  Starts,     \* how often brokers are started in all
  Elections,  \* how often partition 0 gets another leader
  Begun,      \* how far the split was: "asked", "bumped" (the barrier names the epoch), or "done" (partition 1 is led)
  Off         \* the rules that are switched off

VARIABLES
  broker,     \* of each: the release, "off", "old" or "new"
  level,      \* 2: lineages are finalized
  zero,       \* partition 0: its leader epoch; whether it still takes the key; the last epoch in which it did
  one,        \* partition 1: its state's form ("old" or "new"), leader epoch (-1: never led), and the epoch of 0 that it waits for
              \* (-1: not known; its own epoch counts from 0)
  reader,     \* of consumers of both releases: what was answered to each about partition 1
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
\* One that is older than what is finalized looks at no feature: the controller refuses it.
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

\* The split goes on: 0 gets another epoch and stops taking the key, and the barrier learns the epoch before. In the new
\* release the state of 1 comes with its first leader, and there is no state before.
Bump ==
  /\ zero.takes /\ (one.form = "new" \/ level = 1)
  /\ zero' = [zero EXCEPT !.epoch = @ + 1, !.takes = FALSE]
  /\ one' = [one EXCEPT !.waits = zero.epoch]
  /\ UNCHANGED <<broker, level, reader, left>>
Lead ==
  /\ one.epoch = -1 /\ ~zero.takes /\ (one.form = "new" \/ level = 1)
  /\ one' = [one EXCEPT !.epoch = 0]
  /\ UNCHANGED <<broker, level, zero, reader, left>>

\* The entry is what the barrier names. Of a barrier that names no epoch yet, nothing is known: then the resize goes on first.
Convert ==
  /\ level = 2 /\ one.form = "old"
  /\ IF Rule("unfinished_goes_on") THEN one' = [one EXCEPT !.form = "new", !.epoch = IF @ >= 0 /\ Rule("by_a_bump") THEN @ + 1 ELSE @]
     ELSE one' = [one EXCEPT !.form = "new", !.epoch = IF @ >= 0 THEN @ + 1 ELSE 0]
  /\ UNCHANGED <<broker, level, zero, reader, left>>

-----------------------------------------------------------------------------
(* Consumers ask any broker from whom partition 1 has keys. Of the new state an old broker sees no barrier. *)
Answer(release, from) ==
  CASE from = "old" /\ release = "old" ->
         [told |-> one.epoch >= 0, as_of |-> one.epoch, waits |-> IF one.form = "old" THEN {one.waits} ELSE {}]
    [] from = "old" -> Unknown
    [] release = "old" -> IF Rule("old_are_told_nothing") THEN Unknown ELSE [told |-> one.epoch >= 0, as_of |-> one.epoch, waits |-> {}]
    \* of a state without a lineage a new broker says that it is not known
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

\* Whoever takes its answer for fresh enough for the newest records of 1 waits for all records of the key in 0.
Promise == \A release \in {"old", "new"} :
  LET r == reader[release] IN
  r.told /\ r.as_of >= one.epoch /\ one.epoch >= 0 => \E f \in r.waits : f >= zero.last
\* The key has one owner.
OneOwner == one.epoch >= 0 => ~zero.takes
\* When nothing is left but to ask, and a new broker lives, the split is done and consumers of the new release know of it.
Rest == level = 2 /\ Old = {} /\ Live # {} /\ ~ENABLED Bump /\ ~ENABLED Lead /\ ~ENABLED Convert
NoHang == Rest => one.epoch >= 0 /\ \A b \in Live : Answer("new", broker[b]).told
=============================================================================
