-------------------------------- MODULE Sizes --------------------------------
(***************************************************************************)
(* The lineage of a partition grows with each resize that gives it keys,   *)
(* and its znode has a largest size. Can a resize that has begun always be *)
(* carried out, or taken back? The size of a znode is the number of losers *)
(* that its lineage names. README.md says what is left out.                *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
  Initial,  \* initial_partition_count
  Ids,      \* how many partition ids there may ever be
  Asks,     \* how many resizes are begun, and cancelled
  Most,     \* partition.state.max.bytes
  Off       \* the rules that are switched off

VARIABLES
  count,    \* the partition count; of a resize that has begun, the new one
  before,   \* the count before the resize that has begun; 0: none has
  asked,    \* how many were begun or cancelled
  there,    \* the numbers that exist
  lineage,  \* of each number: a sequence of sets of losers
  left,     \* of each number: the losers of the gain that is yet to be written
  written   \* of each number: the losers of the gain of this resize that is written

vars == <<count, before, asked, there, lineage, left, written>>
Rule(name) == name \notin Off
Parts == 0..(Ids - 1)
Nobody == [p \in Parts |-> {}]
Largest(S) == CHOOSE x \in S : \A y \in S : y <= x

Base(n) == CHOOSE m \in {Initial * 2^l : l \in 0..4} : m <= n /\ n < 2 * m
RECURSIVE Ancestors(_)
Ancestors(p) == IF p < Initial THEN {} ELSE {p - Base(p)} \cup Ancestors(p - Base(p))
AncestorBelow(p, n) == Largest({a \in Ancestors(p) : a < n})

\* The losers of each number that gains keys.
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

\* Judged before the goal is written, for all that gain keys.
Begin(n) ==
  /\ before = 0 /\ n # count /\ asked < Asks
  /\ LET gains == Gains(count, n) IN
     /\ CASE ~Rule("before_the_goal") -> TRUE
          [] ~Rule("all_gainers") -> Fits(gains, {Largest(Gainers(gains))})
          [] OTHER -> Fits(gains, Parts)
     /\ left' = gains /\ there' = there \cup 0..(n - 1)
  /\ count' = n /\ before' = count /\ asked' = asked + 1 /\ written' = Nobody
  /\ UNCHANGED lineage

\* The count before is asked for again: what was gained goes back. It is judged like any other resize.
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

\* A marked partition is removed, the highest first; nobody names it any more.
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
\* What is left of a resize that has begun can be written.
CanEnd == \A p \in Parts : left[p] # {} => Size(p) + Cardinality(left[p]) <= Most
Ends == []<>(before = 0)
=============================================================================
