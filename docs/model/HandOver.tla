------------------------------ MODULE HandOver ------------------------------
(***************************************************************************)
(* A consumer group hands a key over: members, generations, callbacks,     *)
(* commits, and a coordinator that fails over. All resizes are over. They  *)
(* determine the partition of each record of the key. Each record waits    *)
(* for all older ones in other partitions; module Resize shows that its    *)
(* barriers have this effect. README.md lists the omissions.               *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
  Where,      \* the partition of each record of the key, in the order of production
  Members,
  Unowned,    \* whether a partition may have no owner
  Faults,     \* how many faults of each kind: [rebalance, eviction, crash, failover, seek, ahead, expiry]
  Off         \* the rules that are switched off

VARIABLES
  group,      \* the coordinator's durable state: generation, owner of each partition, the members that have joined
  committed,  \* offsets on disk
  told,       \* committed offsets that were answered and are not on disk, with "commit_on_disk" off
  position,   \* positions in the coordinator's memory
  member,     \* by member: its generation, whether it runs, the positions of others that it knows, and its partitions
  flushed,    \* the highest offset of each partition whose flush callback has returned
  start,      \* log starts: retention has removed the records below
  delivered,  \* records delivered
  broken,
  left

vars == <<group, committed, told, position, member, flushed, start, delivered, broken, left>>

Rule(name) == name \notin Off
Records == DOMAIN Where
Parts == {Where[r] : r \in Records}
Largest(S) == CHOOSE x \in S : \A y \in S : y <= x
Count(p, last) == Cardinality({r \in 1..last : Where[r] = p})
Offset(r) == Count(Where[r], r) - 1
RecordAt(p, offset) == CHOOSE r \in Records : Where[r] = p /\ Offset(r) = offset
End(p) == Count(p, Len(Where))
Greatest(a, b) == IF a > b THEN a ELSE b
Unknown == -1
Nobody == "nobody"

\* A member's view of a partition. begun: it has fetched its first offset. at: delivered up to here. safe: the flush callback has returned
\* up to here. sure: committed up to here. kept: its own accepted commits reach up to here; another member may have read further since.
\* open: the offset up to which the barrier is open. loaded: by partition, the flushed offset at the last call of the load callback.
\* said: its last report, if it reports each position only once.
NotMine == [mine |-> FALSE, begun |-> FALSE, at |-> 0, safe |-> 0, sure |-> 0, kept |-> 0, open |-> 0, said |-> -1,
            load |-> "no", loaded |-> [p \in Parts |-> 0]]

Owners(members) == [Parts -> IF Unowned THEN members \cup {Nobody} ELSE members]
Silence == [p \in Parts |-> 0]
Init ==
  /\ \E owner \in Owners(Members) :
       group = [generation |-> 1, owner |-> owner, joined |-> Members, stable |-> TRUE]
  /\ committed = [p \in Parts |-> 0] /\ told = [p \in Parts |-> 0]
  /\ position = [p \in Parts |-> 0]
  /\ member = [m \in Members |-> [generation |-> 0, was |-> 0, runs |-> TRUE, heard |-> Silence, parts |-> [p \in Parts |-> NotMine]]]
  /\ flushed = [p \in Parts |-> 0]
  /\ start = [p \in Parts |-> 0]
  /\ delivered = {} /\ broken = ""
  /\ left = Faults

Current(m) == group.stable /\ member[m].generation = group.generation
Mine(m, p) == member[m].parts[p]
With(m, p, view) == member' = [member EXCEPT ![m].parts[p] = view]
\* An answered commit counts although it may not be on disk.
Answered(p) == IF told[p] > committed[p] THEN told[p] ELSE committed[p]

-----------------------------------------------------------------------------
(* Generations *)

\* The group rebalances: members join again one by one, and a member that does not is evicted.
Rebalance ==
  /\ left.rebalance > 0 /\ left' = [left EXCEPT !.rebalance = @ - 1]
  /\ group.stable
  /\ group' = [group EXCEPT !.stable = FALSE, !.joined = {}]
  /\ UNCHANGED <<committed, told, position, member, flushed, delivered, broken, start>>

\* A member notices the rebalance: it flushes, commits, gives up its partitions and joins again.
Flushable(m) == {p \in Parts : Mine(m, p).mine /\ Mine(m, p).safe < Mine(m, p).at}
Uncommitted(m) == {p \in Parts : Mine(m, p).mine /\ Mine(m, p).sure < Mine(m, p).safe}
Join(m) ==
  /\ ~group.stable /\ m \notin group.joined /\ member[m].runs
  /\ Rule("rebalance_wakes") \/ \A p \in Parts : ~Mine(m, p).mine \/ Mine(m, p).open >= End(p)
  /\ Flushable(m) = {} /\ Uncommitted(m) = {}
  /\ group' = [group EXCEPT !.joined = @ \cup {m}]
  /\ member' = [member EXCEPT ![m].was = member[m].generation, ![m].generation = 0, ![m].heard = Silence,
                              ![m].parts = [p \in Parts |-> [NotMine EXCEPT !.kept = Mine(m, p).kept]]]
  /\ UNCHANGED <<committed, told, position, flushed, delivered, broken, left, start>>

\* Commits and positions are fenced by the old generation while members join again: members commit before they join.
Heard(m) == member[m].generation = group.generation
FlushedAll(m) == \A p \in Parts : Mine(m, p).mine /\ Mine(m, p).begun => committed[p] <= Mine(m, p).safe
Gone == {m \in Members : ~member[m].runs}
\* All live members have joined, or the others are evicted and do not notice.
Complete ==
  /\ ~group.stable /\ group.joined # {}
  /\ LET away == Members \ (group.joined \cup Gone) IN
     \/ away = {} /\ UNCHANGED left
     \/ away # {} /\ left.eviction > 0 /\ (\A m \in away : FlushedAll(m) \/ ~Heard(m)) /\ left' = [left EXCEPT !.eviction = @ - 1]
  /\ \E owner \in Owners(group.joined) :
       group' = [group EXCEPT !.generation = @ + 1, !.stable = TRUE, !.owner = owner]
  /\ position' = IF Rule("positions_die") THEN [p \in Parts |-> Answered(p)] ELSE position
  /\ UNCHANGED <<committed, told, member, flushed, delivered, broken, start>>

\* An evicted member notices the eviction and joins again: one more rebalance.
ComeBack(m) ==
  /\ group.stable /\ member[m].runs /\ m \notin group.joined
  /\ group' = [group EXCEPT !.stable = FALSE, !.joined = {m}]
  /\ member' = [member EXCEPT ![m].generation = 0, ![m].was = 0, ![m].heard = Silence,
                              ![m].parts = [p \in Parts |-> NotMine]]
  /\ UNCHANGED <<committed, told, position, flushed, delivered, broken, left, start>>

\* A member still knows its own commits of the previous generation.
Remembered(m, p) == IF member[m].was + 1 = group.generation THEN Mine(m, p).kept ELSE 0
Sync(m) ==
  /\ group.stable /\ m \in group.joined /\ member[m].runs /\ member[m].generation # group.generation
  /\ member' = [member EXCEPT
       ![m].generation = group.generation,
       ![m].parts = [p \in Parts |->
         IF group.owner[p] # m THEN NotMine ELSE [NotMine EXCEPT !.mine = TRUE, !.kept = Remembered(m, p)]]]
  /\ UNCHANGED <<group, committed, told, position, flushed, delivered, broken, left, start>>

\* A member fetches its first offset. The fetch is not fenced, so an evicted member may get another member's commit.
Fetch(m, p) ==
  /\ Mine(m, p).mine /\ ~Mine(m, p).begun
  /\ With(m, p, [Mine(m, p) EXCEPT !.begun = TRUE, !.at = Greatest(Answered(p), start[p]), !.safe = Answered(p), !.sure = Answered(p),
                                   !.kept = IF Rule("own_commits_only") THEN @ ELSE Answered(p), !.open = Answered(p)])
  /\ UNCHANGED <<group, committed, told, position, flushed, delivered, broken, left, start>>

Crash(m) ==
  /\ left.crash > 0 /\ left' = [left EXCEPT !.crash = @ - 1]
  /\ member[m].runs /\ Gone \cup {m} # Members
  /\ member' = [member EXCEPT ![m] = [generation |-> 0, was |-> 0, runs |-> FALSE, heard |-> Silence, parts |-> [p \in Parts |-> NotMine]]]
  /\ group' = [group EXCEPT !.stable = FALSE, !.joined = IF group.stable THEN {} ELSE @ \ {m}]
  /\ UNCHANGED <<committed, told, position, flushed, delivered, broken, start>>

-----------------------------------------------------------------------------
(* The coordinator's memory *)

FailOver ==
  /\ left.failover > 0 /\ left' = [left EXCEPT !.failover = @ - 1]
  /\ told' = [p \in Parts |-> 0]
  /\ position' = IF ~Rule("never_upward") THEN [p \in Parts |-> End(p)]
                 ELSE IF Rule("rebuilt") THEN committed ELSE [p \in Parts |-> Unknown]
  /\ UNCHANGED <<group, committed, member, flushed, delivered, broken, start>>

OnDisk(p) ==
  /\ told[p] > committed[p]
  /\ committed' = [committed EXCEPT ![p] = told[p]]
  /\ UNCHANGED <<group, told, position, member, flushed, delivered, broken, left, start>>


-----------------------------------------------------------------------------
(* A member and one of its partitions *)

\* Retention removes delivered records. (A record that it removes before it is read is lost with any rules.)
Expire(p) ==
  /\ left.expiry > 0 /\ left' = [left EXCEPT !.expiry = @ - 1]
  /\ \E o \in (start[p] + 1)..End(p) :
       /\ \A r \in Records : Where[r] = p /\ Offset(r) < o => r \in delivered
       /\ start' = [start EXCEPT ![p] = o]
  /\ UNCHANGED <<group, committed, told, position, member, flushed, delivered, broken>>
\* A member's position is out of range, and it continues at the log start.
Skip(m, p) ==
  /\ Mine(m, p).begun /\ Mine(m, p).at < start[p]
  /\ With(m, p, [Mine(m, p) EXCEPT !.at = start[p]])
  /\ UNCHANGED <<group, committed, told, position, flushed, delivered, broken, left, start>>

\* The coordinator answers a poll of the current generation. If a partition has no owner, the log start counts too.
Hear(m) ==
  LET counts(p) == group.owner[p] = Nobody \/ ~Rule("owner_counts")
      heard == [p \in Parts |-> IF Mine(m, p).mine THEN 0
                                ELSE IF counts(p) THEN Greatest(position[p], start[p]) ELSE position[p]] IN
  /\ Current(m) /\ member[m].heard # heard
  /\ member' = [member EXCEPT ![m].heard = heard]
  /\ UNCHANGED <<group, committed, told, position, flushed, delivered, broken, left, start>>

Least(a, b) == IF a < b THEN a ELSE b
\* A member's knowledge of a partition's position. For its own partitions its own flushes and commits count, also after an eviction.
Flushed(m, p, offset) == IF Rule("flush_first") THEN Least(offset, Mine(m, p).safe) ELSE offset
Own(m, p) == IF Rule("commit_first") THEN Flushed(m, p, Mine(m, p).kept)
             ELSE IF Rule("flush_first") THEN Mine(m, p).safe ELSE Mine(m, p).at
Known(m) == [p \in Parts |-> IF Mine(m, p).mine THEN Own(m, p) ELSE member[m].heard[p]]

\* The barrier: by the member's knowledge every older record in another partition is processed.
Allowed(p, known) ==
  Largest({0} \cup {o \in 1..End(p) :
    \A r \in 1..RecordAt(p, o - 1) : Where[r] # p => known[Where[r]] > Offset(r)})
Open(m, p) ==
  /\ Mine(m, p).begun
  /\ Allowed(p, Known(m)) > Mine(m, p).open
  \* New keys may follow: their state is loaded before their first record.
  /\ With(m, p, [Mine(m, p) EXCEPT !.open = Allowed(p, Known(m)),
                                   !.load = IF Rule("load_after_open") THEN "no" ELSE @])
  /\ UNCHANGED <<group, committed, told, position, flushed, delivered, broken, left, start>>

Load(m, p) ==
  /\ Mine(m, p).begun /\ Mine(m, p).load = "no"
  /\ With(m, p, [Mine(m, p) EXCEPT !.load = "running", !.loaded = flushed])
  /\ UNCHANGED <<group, committed, told, position, flushed, delivered, broken, left, start>>
Loaded(m, p) ==
  /\ Mine(m, p).mine /\ Mine(m, p).load = "running"
  /\ With(m, p, [Mine(m, p) EXCEPT !.load = "yes"])
  /\ UNCHANGED <<group, committed, told, position, flushed, delivered, broken, left, start>>

Deliver(m, p) ==
  /\ Mine(m, p).mine /\ Mine(m, p).at < Mine(m, p).open /\ Mine(m, p).at >= start[p]
  /\ Mine(m, p).load = "yes" \/ ~Rule("load_returned")
  /\ LET r == RecordAt(p, Mine(m, p).at)
         older == {a \in 1..(r - 1) : Where[a] # p} IN
     /\ delivered' = delivered \cup {r}
     /\ broken' =
          IF \E a \in older : a \notin delivered THEN "an older record was not delivered"
          ELSE IF \E a \in older : flushed[Where[a]] <= Offset(a) THEN "an older record's flush has not returned"
          ELSE IF \E a \in older : Mine(m, p).loaded[Where[a]] <= Offset(a) THEN "loaded before the flush returned"
          ELSE IF older # {} /\ Mine(m, p).load # "yes" THEN "delivered before the load returned"
          ELSE IF Current(m) /\ \E b \in delivered : b > r /\ Where[b] # p THEN "delivered again behind a newer record"
          ELSE broken
  /\ With(m, p, [Mine(m, p) EXCEPT !.at = @ + 1])
  /\ UNCHANGED <<group, committed, told, position, flushed, left, start>>

\* The user asks for more records, and the flush callback returns.
Flush(m, p) ==
  /\ Mine(m, p).mine /\ Mine(m, p).safe < Mine(m, p).at
  /\ With(m, p, [Mine(m, p) EXCEPT !.safe = Mine(m, p).at])
  /\ flushed' = [flushed EXCEPT ![p] = IF Mine(m, p).at > @ THEN Mine(m, p).at ELSE @]
  /\ UNCHANGED <<group, committed, told, position, delivered, broken, left, start>>

Commit(m, p) ==
  LET offset == IF Rule("flush_first") THEN Mine(m, p).safe ELSE Mine(m, p).at
      taken == Heard(m) \/ ~Rule("commits_fenced") IN
  /\ Mine(m, p).begun /\ (Mine(m, p).sure < offset \/ Mine(m, p).kept < offset)
  /\ With(m, p, [Mine(m, p) EXCEPT !.sure = offset, !.kept = IF taken \/ ~Rule("own_commit_taken") THEN offset ELSE @])
  /\ IF ~taken THEN UNCHANGED <<committed, told>>
     ELSE IF Rule("commit_on_disk") THEN committed' = [committed EXCEPT ![p] = offset] /\ UNCHANGED told
     ELSE told' = [told EXCEPT ![p] = offset] /\ UNCHANGED committed
  /\ UNCHANGED <<group, position, flushed, delivered, broken, left, start>>

\* A periodic commit runs ahead of the flush callback. (If the member dies, its unflushed work is lost. So such a member
\* neither crashes nor is evicted before it has flushed.)
CommitAhead(m, p) ==
  /\ left.ahead > 0 /\ left' = [left EXCEPT !.ahead = @ - 1]
  /\ Mine(m, p).mine /\ Heard(m) /\ committed[p] < Mine(m, p).at
  /\ committed' = [committed EXCEPT ![p] = Mine(m, p).at]
  /\ With(m, p, [Mine(m, p) EXCEPT !.sure = Mine(m, p).at, !.kept = Mine(m, p).at])
  /\ UNCHANGED <<group, told, position, flushed, delivered, broken, start>>

Report(m, p) ==
  LET offset == IF Rule("commit_first") THEN Flushed(m, p, Mine(m, p).sure)
                ELSE IF Rule("flush_first") THEN Mine(m, p).safe ELSE Mine(m, p).at IN
  /\ Mine(m, p).begun
  /\ Heard(m) \/ ~Rule("positions_fenced")
  \* The coordinator asks for missing positions (need_position). Without this a member reports each position only once.
  /\ IF Rule("asked_again") THEN position[p] # offset /\ UNCHANGED member
     ELSE Mine(m, p).said # offset /\ With(m, p, [Mine(m, p) EXCEPT !.said = offset])
  /\ position' = [position EXCEPT ![p] = offset]
  /\ UNCHANGED <<group, committed, told, flushed, delivered, broken, left, start>>

\* The user seeks to the beginning, and the position and the commit follow.
Seek(m, p) ==
  /\ left.seek > 0 /\ left' = [left EXCEPT !.seek = @ - 1]
  /\ Mine(m, p).mine /\ Mine(m, p).at > 0 /\ Current(m)
  /\ With(m, p, [Mine(m, p) EXCEPT !.at = 0, !.safe = 0, !.sure = 0, !.kept = 0])
  /\ committed' = [committed EXCEPT ![p] = 0]
  /\ position' = [position EXCEPT ![p] = 0]
  /\ UNCHANGED <<group, told, flushed, delivered, broken, start>>

-----------------------------------------------------------------------------
Step(m) ==
  \/ Join(m) \/ Sync(m) \/ ComeBack(m) \/ Hear(m)
  \/ \E p \in Parts : Open(m, p) \/ Fetch(m, p) \/ Skip(m, p) \/ CommitAhead(m, p) \/ Load(m, p) \/ Loaded(m, p) \/ Deliver(m, p) \/ Flush(m, p) \/ Commit(m, p) \/ Report(m, p)
Next ==
  \/ Rebalance \/ Complete \/ FailOver \/ \E p \in Parts : OnDisk(p) \/ Expire(p)
  \/ \E m \in Members : Step(m) \/ Crash(m) \/ \E p \in Parts : Seek(m, p)

Spec == Init /\ [][Next]_vars
Fair ==
  /\ Spec
  /\ WF_vars(Complete)
  /\ \A p \in Parts : WF_vars(OnDisk(p))
  /\ \A m \in Members :
       /\ WF_vars(Join(m)) /\ WF_vars(Sync(m)) /\ WF_vars(ComeBack(m)) /\ WF_vars(Hear(m))
       /\ \A p \in Parts :
            /\ WF_vars(Fetch(m, p)) /\ WF_vars(Skip(m, p)) /\ WF_vars(Open(m, p)) /\ WF_vars(Load(m, p)) /\ WF_vars(Loaded(m, p)) /\ WF_vars(Deliver(m, p))
            /\ WF_vars(Flush(m, p)) /\ WF_vars(Commit(m, p)) /\ WF_vars(Report(m, p))

-----------------------------------------------------------------------------
(* Properties *)

\* Older delivered -> its flush returned -> the newer one's load called and returned -> newer delivered. No member of the
\* generation delivers a record again after a newer record of the key from another partition.
Promise == broken = ""
\* The coordinator's position of a partition is never above the offset that its owner has flushed and committed.
TruePositions ==
  \A m \in Members, p \in Parts : Current(m) /\ Mine(m, p).begun => position[p] <= Mine(m, p).sure
OneOwner ==
  \A m, n \in Members, p \in Parts :
    m # n /\ Current(m) /\ Current(n) => ~(Mine(m, p).mine /\ Mine(n, p).mine)
AllDelivered == <>(\A r \in Records : r \in delivered)
=============================================================================
