----------------------------- MODULE Tombstones ------------------------------
(***************************************************************************)
(* A compacted topic is resized by the rule of module Lineage. When may a  *)
(* partition drop a tombstone, and when may a marked partition be removed, *)
(* so that a new reader finds the last written value of each key? A resize *)
(* is one step here: Lineage shows that readers follow it in order.        *)
(* README.md lists the omissions.                                          *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
  Initial,  \* initial_partition_count
  Ids,      \* the largest number of partitions
  Start,    \* the count at the beginning
  Plan,     \* the counts that an administrator asks for, in this order
  Keys,     \* keys, each given by its hash
  Records,  \* records per key, each a value or a tombstone
  Off       \* the rules that are switched off

VARIABLES
  count,    \* the partition count
  asked,    \* the number of resizes of the plan so far
  part,     \* by partition: whether it exists, its leader epoch, its lineage, the last epoch of a removed incarnation, its log
  written   \* the records of each key, oldest first: TRUE is a tombstone

vars == <<count, asked, part, written>>
Rule(name) == name \notin Off
Parts == 0..(Ids - 1)
Largest(S) == CHOOSE x \in S : \A y \in S : y <= x

Base(n) == CHOOSE m \in {Initial * 2^l : l \in 0..4} : m <= n /\ n < 2 * m
Place(hash, n) == IF hash % Base(n) < n - Base(n) THEN hash % (2 * Base(n)) ELSE hash % Base(n)
RECURSIVE Ancestors(_)
Ancestors(p) == IF p < Initial THEN {} ELSE {p - Base(p)} \cup Ancestors(p - Base(p))
AncestorBelow(p, n) == Largest({a \in Ancestors(p) : a < n})

Init ==
  /\ count = Start /\ asked = 0
  /\ part = [p \in Parts |-> [there |-> p < Start, epoch |-> 0, lineage |-> {}, gone |-> -1, log |-> <<>>]]
  /\ written = [k \in Keys |-> <<>>]

-----------------------------------------------------------------------------
(* The controller *)

Moves(old, new) ==
  IF new > old THEN {<<AncestorBelow(p, old), p>> : p \in old..(new - 1)}
  ELSE {<<p, AncestorBelow(p, new)>> : p \in new..(old - 1)}
Over(x) == part[x[2]].gone >= x[3]

Resize ==
  /\ asked < Len(Plan) /\ asked' = asked + 1
  /\ count' = Plan[asked + 1]
  /\ LET moves == Moves(count, count')
         gained(p) == {m[1] : m \in {x \in moves : x[2] = p}}
         Bumped(p) == [part[p] EXCEPT
           !.there = @ \/ p < count', !.epoch = @ + 1,
           !.lineage = {x \in @ : ~Over(x)} \cup {<<part[p].epoch + 1, q, part[q].epoch>> : q \in gained(p)}] IN
     part' = [p \in Parts |-> IF part[p].there \/ p < count' THEN Bumped(p) ELSE part[p]]
  /\ UNCHANGED written

\* A marked partition is removed, the highest first, but only if it has no record that a new reader needs.
Remove(p) ==
  /\ part[p].there /\ p >= count /\ \A q \in Parts : q > p => ~part[q].there
  /\ Rule("marked_stays") => part[p].log = <<>>
  /\ part' = [part EXCEPT ![p] = [@ EXCEPT !.there = FALSE, !.gone = part[p].epoch, !.lineage = {}, !.log = <<>>]]
  /\ UNCHANGED <<count, asked, written>>

-----------------------------------------------------------------------------
(* The producer and the cleaner *)

Write(k) == \E tombstone \in {TRUE, FALSE} :
  /\ Len(written[k]) < Records
  /\ written' = [written EXCEPT ![k] = Append(@, tombstone)]
  /\ LET p == Place(k, count) IN
     part' = [part EXCEPT ![p].log = Append(@, [key |-> k, number |-> Len(written[k]) + 1, epoch |-> part[p].epoch])]
  /\ UNCHANGED <<count, asked>>

Without(log, i) == SubSeq(log, 1, i - 1) \o SubSeq(log, i + 1, Len(log))
IsTombstone(r) == written[r.key][r.number]

\* An older record of a key is removed when a newer one is in the same log.
Compact(p) == \E i \in DOMAIN part[p].log :
  /\ \E j \in DOMAIN part[p].log : j > i /\ part[p].log[j].key = part[p].log[i].key
  /\ part' = [part EXCEPT ![p].log = Without(@, i)]
  /\ UNCHANGED <<count, asked, written>>

\* The partitions that may have older values of the keys that p has in its epoch b. Partitions that a removed partition named are named here too.
Named(p, b) == {x[2] : x \in {y \in part[p].lineage : y[1] <= b /\ ~Over(y)}}
Keeps(p, b) ==
  CASE ~Rule("lineage_keeps") -> FALSE
    [] ~Rule("survivors_keep") -> p >= Initial     \* only children keep tombstones
    [] OTHER -> Named(p, b) # {}
\* If the last record of a key is a tombstone, it is removed after delete.retention.ms.
Expire(p) == \E i \in DOMAIN part[p].log :
  LET r == part[p].log[i] IN
  /\ IsTombstone(r) /\ ~Keeps(p, r.epoch)
  /\ \A j \in DOMAIN part[p].log : part[p].log[j].key = r.key => j = i
  /\ part' = [part EXCEPT ![p].log = Without(@, i)]
  /\ UNCHANGED <<count, asked, written>>

Next == Resize \/ (\E k \in Keys : Write(k)) \/ (\E p \in Parts : Remove(p) \/ Compact(p) \/ Expire(p))
Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* Properties *)

\* The records of k that a new reader of the whole topic finds. The newest one counts, by the order of Lineage.
Found(k) == UNION {{part[p].log[i].number : i \in {j \in DOMAIN part[p].log : part[p].log[j].key = k}} : p \in Parts}
Newest(k) == Len(written[k])
ReadsTheLast == \A k \in Keys :
  IF Found(k) = {} THEN Newest(k) = 0 \/ written[k][Newest(k)] ELSE Largest(Found(k)) = Newest(k)
=============================================================================
