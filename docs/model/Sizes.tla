-------------------------------- MODULE Sizes --------------------------------
(***************************************************************************)
(* The lineage of a partition grows with each resize that gives it keys,   *)
(* and its znode has a largest size. Can a resize that has begun always be *)
(* carried out or cancelled? The size of a znode is the number of losers   *)
(* that its lineage names. README.md lists the omissions.                  *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
  Initial,  \* initial_partition_count
  Ids,      \* the largest number of partitions
  Asks,     \* the number of resizes and cancels
  Most,     \* partition.state.max.bytes
  Off       \* the rules that are switched off

VARIABLES
  count,    \* the partition count; during a resize the new count
  before,   \* the count before the current resize; 0: there is none
  asked,    \* the number of resizes and cancels so far
  there,    \* the partitions that exist
  lineage,  \* by partition: a sequence of sets of losers
  left,     \* by partition: the losers of the gain that is not written yet
  written   \* by partition: the losers of this resize's gain that is written

vars == <<count, before, asked, there, lineage, left, written>>
Rule(name) == name \notin Off
Parts == 0..(Ids - 1)
Nobody == [p \in Parts |-> {}]
Largest(S) == CHOOSE x \in S : \A y \in S : y <= x

Base(n) == CHOOSE m \in {Initial * 2^l : l \in 0..4} : m <= n /\ n < 2 * m
RECURSIVE Ancestors(_)
Ancestors(p) == IF p < Initial THEN {} ELSE {p - Base(p)} \cup Ancestors(p - Base(p))
AncestorBelow(p, n) == Largest({a \in Ancestors(p) : a < n})

\* The losers of each partition that gains keys.
Gains(old, new) == [p \in Parts |->
  IF new > old THEN IF p \in old..(new - 1) THEN {AncestorBelow(p, old)} ELSE {}
  ELSE {q \in new..(old - 1) : AncestorBelow(q, new) = p}]
RECURSIVE Total(_)
Total(sets) == IF sets = <<>> THEN 0 ELSE Cardinality(Head(sets)) + Total(Tail(sets))
Size(p) == Total(lineage[p])
Fits(gains, judged) == \A p \in judged : gains[p] # {} => Size(p) + Cardinality(gains[p]) <= Most
Gainers(gains) == {p \in Parts : gains[p] # {}}

Init ==
  /\ count = Initial /\ before = 0 /\ asked = 0
  /\ there = 0..(Initial - 1) /\ lineage = [p \in Parts |-> <<>>]
  /\ left = Nobody /\ written = Nobody

\* The sizes of all partitions that gain keys are checked before the goal is written.
Begin(n) ==
  /\ before = 0 /\ n # count /\ asked < Asks
  /\ LET gains == Gains(count, n) IN
     /\ CASE ~Rule("before_the_goal") -> TRUE
          [] ~Rule("all_gainers") -> Fits(gains, {Largest(Gainers(gains))})
          [] OTHER -> Fits(gains, Parts)
     /\ left' = gains /\ there' = there \cup 0..(n - 1)
  /\ count' = n /\ before' = count /\ asked' = asked + 1 /\ written' = Nobody
  /\ UNCHANGED lineage

\* The previous count is asked for again: gained keys go back. The sizes are checked as for any other resize.
Cancel ==
  /\ before # 0 /\ asked < Asks
  /\ LET back == [q \in Parts |-> {p \in Parts : q \in written[p]}] IN
     /\ Rule("cancels_too") => Fits(back, Parts)
     /\ left' = back
  /\ count' = before /\ before' = count /\ asked' = asked + 1 /\ written' = Nobody
  /\ UNCHANGED <<there, lineage>>

Write(p) ==
  /\ left[p] # {} /\ Size(p) + Cardinality(left[p]) <= Most
  /\ lineage' = [lineage EXCEPT ![p] = Append(@, left[p])]
  /\ written' = [written EXCEPT ![p] = left[p]] /\ left' = [left EXCEPT ![p] = {}]
  /\ UNCHANGED <<count, before, asked, there>>

Done ==
  /\ before # 0 /\ left = Nobody
  /\ before' = 0 /\ written' = Nobody
  /\ UNCHANGED <<count, asked, there, lineage, left>>

\* A marked partition is removed, the highest first. No lineage names it any more.
Remove(q) ==
  /\ before = 0 /\ q \in there /\ q >= count /\ \A p \in there : p <= q
  /\ there' = there \ {q}
  /\ lineage' = [p \in Parts |-> IF p = q THEN <<>> ELSE [i \in DOMAIN lineage[p] |-> lineage[p][i] \ {q}]]
  /\ UNCHANGED <<count, before, asked, left, written>>

Next == (\E n \in Initial..Ids : Begin(n)) \/ Cancel \/ Done \/ (\E p \in Parts : Write(p) \/ Remove(p))
Spec == Init /\ [][Next]_vars
Fair == Spec /\ WF_vars(Done) /\ \A p \in Parts : WF_vars(Write(p))

-----------------------------------------------------------------------------
(* Properties *)

Small == \A p \in Parts : Size(p) <= Most
\* The remaining writes of a resize that has begun fit.
CanEnd == \A p \in Parts : left[p] # {} => Size(p) + Cardinality(left[p]) <= Most
Ends == []<>(before = 0)
=============================================================================
