------------------------------- MODULE Removal -------------------------------
(***************************************************************************)
(* A marked partition is drained and removed while the members of a group  *)
(* notice it late or never. There are partition 0 and a child that is      *)
(* split off, merged back and removed, perhaps several times. One key is   *)
(* in the child while there are two partitions, and has one record in each *)
(* layout. Offsets are committed ahead of the flush callback, as periodic  *)
(* commits do. README.md lists the omissions.                              *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets, Progress

CONSTANTS
  Plan,       \* the undeleted counts, 1 or 2, from the first to the last layout
  Members,
  Stock,      \* the members that neither poll for positions nor keep order
  Faults,     \* how many faults of each kind: [rebalance, failover, eviction, expiry]
  Off         \* the rules that are switched off

VARIABLES
  now,        \* the index of the topic's true description
  drained,    \* the controller has the answer that the group has processed the marked partition
  group,      \* the owner of each partition, the members that have joined, the description by which partitions were assigned, the evicted members
  memory,     \* the coordinator's, in one generation: the members that polled, those that were silent for a session timeout,
              \* the wanted and the reported positions
  committed,
  member,
  flushed,    \* by partition, the number of records for which the flush callback has returned
  delivered, broken,
  left,
  start       \* log starts: retention has removed the records below

vars == <<now, drained, group, memory, committed, member, flushed, delivered, broken, left, start>>

Rule(name) == name \notin Off
Least(S) == CHOOSE x \in S : \A y \in S : x <= y

-----------------------------------------------------------------------------
(* The topic: its descriptions in metadata, from the first to the last *)

None == 0
\* life: the child's incarnation, None while there is no child. epoch: partition 0's leader epoch, one for each layout.
First == [count |-> Plan[1], version |-> 0, epoch |-> 0, life |-> Plan[1] - 1, lives |-> Plan[1] - 1]
After(s, count) ==
  LET v == s.version + 1 IN
  IF count > s.count
  THEN <<[count |-> 2, version |-> v, epoch |-> v, life |-> s.lives + 1, lives |-> s.lives + 1]>>
  ELSE <<[s EXCEPT !.count = 1, !.version = v],                                   \* the child is marked and sealed
         [s EXCEPT !.count = 1, !.version = v, !.epoch = v],                      \* the survivor takes its keys
         [s EXCEPT !.count = 1, !.version = v, !.epoch = v, !.life = None]>>
RECURSIVE Story(_)
Story(layouts) ==
  IF layouts = 1 THEN <<First>>
  ELSE LET before == Story(layouts - 1) IN before \o After(before[Len(before)], Plan[layouts])
Topic == Story(Len(Plan))
Lives == 1..Topic[Len(Topic)].lives
\* Partition 0, and each incarnation of the child under its own number.
Parts == {0} \cup Lives
Child(s) == {s.life} \ {None}
Marked(s) == IF s.count = 1 THEN Child(s) ELSE {}

\* Record r is written in the layout r - 1.
Records == 1..Len(Plan)
Home(r) == IF Plan[r] = 1 THEN 0 ELSE Topic[CHOOSE i \in DOMAIN Topic : Topic[i].version = r - 1].life
Written(r) == Topic[now].epoch >= r - 1
Of(p, S) == {r \in S : Home(r) = p}
Offset(r) == Cardinality(Of(Home(r), 1..(r - 1)))
RecordAt(p, offset) == CHOOSE r \in Records : Home(r) = p /\ Offset(r) = offset
End(p) == Cardinality({r \in Of(p, Records) : Written(r)})
\* The number of records of partition 0 that were written before a child was split off.
Threshold(life) == Cardinality(Of(0, 1..Least(Of(life, Records))))

-----------------------------------------------------------------------------
(* The state *)

Nobody == "nobody"
Unknown == -1
Closed == -1        \* below every leader epoch
\* A member's view of a partition. at: delivered up to here. safe: the flush callback has returned up to here. load: the state of the
\* load callback. told: the gains that it covers. loaded: by partition, the flushed records at its last call. view: the description of
\* the last look. epoch: the leader epoch in it. before: the cap while gains that no look showed as marked are not loaded.
NotMine == [mine |-> FALSE, at |-> 0, safe |-> 0, load |-> "no", told |-> {}, loaded |-> [p \in Parts |-> 0],
            view |-> None, epoch |-> Closed, before |-> Closed, gains |-> {}, announced |-> {}]
Forgotten == [heard |-> {}, silent |-> {}, asked |-> FALSE, wanted |-> {}, reported |-> [p \in Parts |-> Unknown]]

Owners(s, members) ==
  {owner \in [Parts -> members \cup {Nobody}] : \A p \in Parts : owner[p] = Nobody <=> p \notin {0} \cup Child(s)}
Init ==
  /\ now = 1 /\ drained = FALSE
  /\ \E owner \in Owners(Topic[1], Members) :
       group = [owner |-> owner, joined |-> Members, stable |-> TRUE, counted |-> 1, expelled |-> {}]
  /\ memory = Forgotten
  /\ committed = [p \in Parts |-> 0] /\ flushed = [p \in Parts |-> 0]
  /\ member = [m \in Members |-> [synced |-> FALSE, parts |-> [p \in Parts |-> NotMine]]]
  /\ delivered = {} /\ broken = ""
  /\ left = Faults
  /\ start = [p \in Parts |-> 0]

Mine(m, p) == member[m].parts[p]
With(m, p, view) == member' = [member EXCEPT ![m].parts[p] = view]
Present == Members \ group.expelled
Current(m) == group.stable /\ m \in Present /\ member[m].synced
AllHeard == memory.heard \cup memory.silent = Present

\* The group's position in the coordinator's answer.
Position(p) ==
  LET offset == IF committed[p] = 0 \/ (p # 0 /\ p # Topic[now].life) THEN Unknown ELSE committed[p]
      said == memory.reported[p] IN
  IF ~group.stable THEN Unknown
  ELSE IF group.owner[p] \in memory.heard THEN IF Rule("own_reports") \/ said > offset THEN said ELSE offset
  ELSE IF AllHeard \/ ~Rule("everybody_polled") THEN offset
  ELSE Unknown
\* An evicted member gets no more positions.
Told(m, p) == IF m \in Present THEN Position(p) ELSE Unknown
\* Only a live member can report the position: it owns the partition and polls, or may poll soon.
AwaitsReport(p) == ~group.stable \/ group.owner[p] \in memory.heard \/ ~AllHeard
\* The log start counts as the position if no live member can report it.
StartCounts(m, p) == (m \in Present /\ ~Mine(m, p).mine /\ ~AwaitsReport(p)) \/ ~Rule("owner_counts")
Passed(m, p, end) == IsDone(Told(m, p), start[p], StartCounts(m, p), end)

-----------------------------------------------------------------------------
(* The controller *)

\* Module Resize has the steps up to the survivor's new layout.
IsMerged == Marked(Topic[now]) # {} /\ Topic[now].epoch = Topic[now].version
Resize ==
  /\ now < Len(Topic) /\ ~IsMerged
  /\ now' = now + 1
  /\ UNCHANGED <<drained, group, memory, committed, member, flushed, delivered, broken, left, start>>

\* The coordinator asks the partition's owner for its position, if the owner polls.
Asked(p) == IF Rule("owner_asked") /\ group.owner[p] \in memory.heard THEN memory.wanted \cup {p} ELSE memory.wanted
\* The committed offset is at the end. Has the group processed the committed records?
Question ==
  LET p == Topic[now].life
      wanted == Asked(p)
      \* A member that keeps order may still poll, and the partitions that it waits for are unknown.
      unheard == ~AllHeard /\ (memory.heard # {} \/ Rule("poll_awaited")) IN
  /\ IsMerged /\ ~drained /\ committed[p] = End(p)
  /\ memory' = [memory EXCEPT !.wanted = wanted, !.asked = TRUE]
  /\ drained' = IsDone(Position(p), committed[p], Position(p) = Unknown /\ p \notin wanted /\ ~unheard, End(p))
  /\ UNCHANGED <<now, group, committed, member, flushed, delivered, broken, left, start>>

\* All records have expired. Has the group processed those that were delivered? The commit does not matter.
QuestionOfEmpty ==
  LET p == Topic[now].life IN
  /\ IsMerged /\ ~drained /\ start[p] = End(p) /\ group.stable
  /\ memory' = [memory EXCEPT !.wanted = Asked(p), !.asked = TRUE]
  /\ drained' = IsDone(Position(p), start[p], ~AwaitsReport(p) \/ ~Rule("owner_counts_removal"), End(p))
  /\ UNCHANGED <<now, group, committed, member, flushed, delivered, broken, left, start>>

Remove ==
  /\ IsMerged /\ drained
  /\ now' = now + 1 /\ drained' = FALSE
  /\ UNCHANGED <<group, memory, committed, member, flushed, delivered, broken, left, start>>

-----------------------------------------------------------------------------
(* Generations. The group leader may have metadata of any age *)

Rebalance ==
  /\ group.stable
  /\ \E i \in 1..now :
       /\ \/ left.rebalance > 0 /\ left' = [left EXCEPT !.rebalance = @ - 1]
          \/ i > group.counted /\ Child(Topic[i]) # Child(Topic[group.counted]) /\ UNCHANGED left
       /\ group' = [group EXCEPT !.stable = FALSE, !.joined = {}, !.counted = i]
  /\ memory' = Forgotten
  /\ UNCHANGED <<now, drained, committed, member, flushed, delivered, broken, start>>
\* A member is cut off for longer than its session timeout and never notices. It does not matter which member. It has not committed
\* ahead of its flush: that work would be lost.
Victim == CHOOSE m \in Members \ Stock : TRUE
Evict(m) ==
  /\ left.eviction > 0 /\ left' = [left EXCEPT !.eviction = @ - 1]
  /\ Current(m) /\ Present # {m}
  /\ \A p \in Parts : Mine(m, p).mine => committed[p] <= Mine(m, p).safe
  /\ group' = [group EXCEPT !.stable = FALSE, !.joined = {}, !.expelled = @ \cup {m}]
  /\ memory' = Forgotten
  /\ UNCHANGED <<now, drained, committed, member, flushed, delivered, broken, start>>

\* A member flushes and commits all its partitions before it joins.
Join(m) ==
  /\ ~group.stable /\ m \in Present \ group.joined
  /\ \A p \in Parts : Mine(m, p).safe = Mine(m, p).at /\ Mine(m, p).load # "running"
  /\ \A p \in Parts : Mine(m, p).mine /\ Mine(m, p).at > 0 => committed[p] = Mine(m, p).at
  /\ group' = [group EXCEPT !.joined = @ \cup {m}]
  /\ member' = [member EXCEPT ![m] = [synced |-> FALSE, parts |-> [p \in Parts |-> NotMine]]]
  /\ UNCHANGED <<now, drained, memory, committed, flushed, delivered, broken, left, start>>
Complete ==
  /\ ~group.stable /\ group.joined = Present
  /\ \E owner \in Owners(Topic[group.counted], Present) : group' = [group EXCEPT !.stable = TRUE, !.owner = owner]
  /\ UNCHANGED <<now, drained, memory, committed, member, flushed, delivered, broken, left, start>>
Sync(m) ==
  /\ group.stable /\ m \in Present /\ ~member[m].synced
  /\ member' = [member EXCEPT ![m] = [synced |-> TRUE, parts |-> [p \in Parts |->
       IF group.owner[p] # m THEN NotMine
       ELSE [NotMine EXCEPT !.mine = TRUE, !.at = committed[p], !.safe = committed[p]]]]]
  /\ UNCHANGED <<now, drained, group, memory, committed, flushed, delivered, broken, left, start>>

FailOver ==
  /\ left.failover > 0 /\ left' = [left EXCEPT !.failover = @ - 1]
  /\ memory' = Forgotten
  /\ UNCHANGED <<now, drained, group, committed, member, flushed, delivered, broken, start>>

-----------------------------------------------------------------------------
(* Polls for positions *)

Hears == UNCHANGED <<now, drained, group, committed, member, flushed, delivered, broken, left, start>>
Poll(m) ==
  /\ Current(m) /\ m \notin Stock \cup memory.heard
  /\ memory' = [memory EXCEPT !.heard = @ \cup {m}] /\ Hears
\* Once a member or the controller wants a position, the coordinator waits a session timeout for a member that never polls.
Silence(m) ==
  /\ m \in (Stock \cap Present) \ memory.silent /\ group.stable /\ memory.asked
  /\ memory' = [memory EXCEPT !.silent = @ \cup {m}] /\ Hears

IsUnopened(m, p) == Mine(m, p).load = "yes" /\ Mine(m, p).gains \cup Mine(m, p).announced = {}
Waits(m, p) ==
  \/ p # 0 /\ p \in Marked(Topic[Mine(m, 0).view]) \cap Mine(m, 0).gains
  \/ p = 0 /\ \E life \in Lives : IsUnopened(m, life) /\ Threshold(life) > 0
Want(m, p) ==
  /\ Current(m) /\ m \in memory.heard /\ p \notin memory.wanted
  /\ Mine(m, 0).view # None \/ p = 0
  /\ Waits(m, p)
  /\ memory' = [memory EXCEPT !.wanted = @ \cup {p}, !.asked = TRUE] /\ Hears

HasPosition(v, p) == IF p = 0 THEN v.epoch # Closed ELSE p \in v.announced
Report(m, p) ==
  LET v == Mine(m, p) IN
  /\ v.mine /\ Current(m) /\ m \in memory.heard /\ p \in memory.wanted /\ HasPosition(v, p)
  /\ v.safe = v.at /\ committed[p] = v.at /\ memory.reported[p] # v.at
  /\ memory' = [memory EXCEPT !.reported[p] = v.at] /\ Hears

-----------------------------------------------------------------------------
(* A member and one of its partitions *)

Reads == UNCHANGED <<now, drained, group, memory, committed, flushed, delivered, broken, left, start>>

\* The load of the assignment. Later looks are compared with the metadata that the member had at its call.
LoadAssigned(m, p) ==
  /\ Mine(m, p).mine /\ Mine(m, p).load = "no"
  /\ \E i \in IF Rule("look_before_load") THEN 1..now ELSE {None} :
       With(m, p, [Mine(m, p) EXCEPT !.load = "yes", !.loaded = flushed, !.view = i])
  /\ Reads

\* Metadata may be of any age, but never goes back. If the map of a marked partition is missing, the member decides nothing.
MayLook(m, p) == Mine(m, p).mine /\ Mine(m, p).load # "no" /\ m \notin Stock
Unmarked(v) == v.gains \ Marked(Topic[v.view])
\* The newest leader epoch for which the user's state is loaded.
Cap(v) == Least({v.epoch} \cup (IF v.gains = Unmarked(v) THEN {} ELSE {Topic[v.view].version - 1})
                          \cup (IF Unmarked(v) = {} THEN {} ELSE {v.before}))
LookAtSurvivor(m) == \E i \in 1..now :
  LET v == Mine(m, 0)
      s == Topic[i]
      jumped == v.view # None /\ s.version > Topic[v.view].version + 1
      unseen == IF jumped /\ Rule("load_after_jump") THEN {-s.version} ELSE {}
      removed == IF v.view = None \/ ~Rule("load_after_removal") THEN {}
                 ELSE (Child(Topic[v.view]) \ Child(s)) \ v.announced
      gains == v.gains \cup (Marked(s) \ v.announced) \cup unseen \cup removed IN
  /\ MayLook(m, 0) /\ (i > v.view \/ (i = v.view /\ v.epoch = Closed))
  /\ With(m, 0, [v EXCEPT !.view = i, !.epoch = s.epoch, !.gains = gains,
                         !.before = IF gains \subseteq Marked(s) THEN Closed ELSE IF v.view = None THEN v.epoch ELSE Cap(v)])
  /\ Reads
LookAtChild(m, life) ==
  /\ MayLook(m, life) /\ IsUnopened(m, life)
  /\ \E i \in 1..now : Topic[i].life = life
  /\ Threshold(life) = 0 \/ Passed(m, 0, Threshold(life))
  /\ With(m, life, [Mine(m, life) EXCEPT !.gains = {life}])
  /\ Reads

\* The gains that a load may cover: all gains except those of a marked partition that still has unprocessed records.
Limiting(m, v) == IF v.view = None THEN {} ELSE {p \in Marked(Topic[v.view]) \cap v.gains : ~Passed(m, p, End(p))}
Due(m, p) == IF p = 0 THEN Mine(m, 0).gains \ Limiting(m, Mine(m, 0)) ELSE Mine(m, p).gains
\* The member reads this child, and its last look shows the child removed or created again.
SeenGone(m, life) ==
  LET view == Mine(m, 0).view IN
  Mine(m, life).mine /\ view # None /\ Topic[view].life # life /\ Topic[view].lives >= life
\* The user's state of a removed child is flushed before any other step.
GoneIsFlushed(m) == \A life \in Lives : SeenGone(m, life) => Mine(m, life).safe = Mine(m, life).at
LoadCalled(m, p) ==
  LET v == Mine(m, p) IN
  /\ v.mine /\ v.load = "yes" /\ Due(m, p) # {}
  /\ GoneIsFlushed(m) \/ ~Rule("gone_is_flushed")
  /\ With(m, p, [v EXCEPT !.load = "running", !.loaded = flushed, !.told = Due(m, p)])
  /\ Reads
LoadReturned(m, p) ==
  LET v == Mine(m, p)
      told == IF Rule("told_at_call") THEN v.told ELSE Due(m, p) IN
  /\ v.mine /\ v.load = "running"
  /\ With(m, p, [v EXCEPT !.load = "yes", !.told = {}, !.gains = @ \ told, !.announced = @ \cup told])
  /\ Reads

MayDeliver(m, p) ==
  LET v == Mine(m, p) IN
  \/ m \in Stock
  \/ /\ v.load = "yes"
     /\ GoneIsFlushed(m) \/ ~Rule("gone_is_flushed")
     /\ IF p # 0 THEN p \in v.announced /\ ~SeenGone(m, p)
        ELSE v.view # None /\ RecordAt(0, v.at) - 1 <= Cap(v)
Deliver(m, p) ==
  LET v == Mine(m, p) IN
  /\ v.mine /\ v.at < End(p) /\ v.at >= start[p] /\ MayDeliver(m, p)
  /\ p = 0 \/ p = Topic[now].life \/ m \notin Present  \* or the record was fetched before the removal
  /\ LET r == RecordAt(p, v.at)
         older == {a \in 1..(r - 1) : Home(a) # p}
         own(a) == Mine(m, Home(a)) IN
     /\ delivered' = IF m \in Present THEN delivered \cup {r} ELSE delivered
     /\ broken' =
          IF \E a \in older : own(a).mine /\ own(a).safe <= Offset(a) /\ Offset(a) < own(a).at THEN "its own older record is not flushed"
          ELSE IF m \notin Present THEN broken
          ELSE IF \E a \in older : a \notin delivered THEN "an older record was not delivered"
          ELSE IF \E a \in older : flushed[Home(a)] <= Offset(a) THEN "an older record's flush has not returned"
          ELSE IF \E a \in older : v.loaded[Home(a)] <= Offset(a) THEN "loaded before the flush returned, or never"
          ELSE broken
  /\ With(m, p, [v EXCEPT !.at = @ + 1])
  /\ UNCHANGED <<now, drained, group, memory, committed, flushed, left, start>>

Flush(m, p) ==
  LET v == Mine(m, p) IN
  /\ v.mine /\ v.safe < v.at
  /\ With(m, p, [v EXCEPT !.safe = v.at])
  /\ flushed' = [flushed EXCEPT ![p] = IF v.at > @ THEN v.at ELSE @]
  /\ UNCHANGED <<now, drained, group, memory, committed, delivered, broken, left, start>>

\* Retention removes delivered records, flushed or not. (A record that it removes before it is read is lost with any rules.)
Expire(p) ==
  /\ left.expiry > 0 /\ left' = [left EXCEPT !.expiry = @ - 1]
  /\ p = 0 \/ p = Topic[now].life
  /\ \E o \in (start[p] + 1)..End(p) :
       /\ \A r \in Of(p, Records) : Offset(r) < o => r \in delivered
       /\ start' = [start EXCEPT ![p] = o]
  /\ UNCHANGED <<now, drained, group, memory, committed, member, flushed, delivered, broken>>
\* A member's position is out of range, and it continues at the log start.
Skip(m, p) ==
  /\ Mine(m, p).mine /\ Mine(m, p).at < start[p]
  /\ With(m, p, [Mine(m, p) EXCEPT !.at = start[p]])
  /\ Reads

\* Commits the delivered records, flushed or not.
Commit(m, p) ==
  /\ m \in Present /\ Mine(m, p).mine /\ committed[p] < Mine(m, p).at
  /\ committed' = [committed EXCEPT ![p] = Mine(m, p).at]
  /\ UNCHANGED <<now, drained, group, memory, member, flushed, delivered, broken, left, start>>

-----------------------------------------------------------------------------
OfMember(m) ==
  \/ Join(m) \/ Sync(m) \/ Poll(m) \/ Silence(m) \/ LookAtSurvivor(m)
  \/ \E life \in Lives : LookAtChild(m, life)
  \/ \E p \in Parts :
       \/ Want(m, p) \/ Report(m, p) \/ LoadAssigned(m, p) \/ LoadCalled(m, p) \/ LoadReturned(m, p)
       \/ Skip(m, p) \/ Deliver(m, p) \/ Flush(m, p) \/ Commit(m, p)
Next ==
  \/ Resize \/ Question \/ QuestionOfEmpty \/ Remove \/ Rebalance \/ Complete \/ FailOver \/ Evict(Victim)
  \/ \E p \in Parts : Expire(p)
  \/ \E m \in Members : OfMember(m)

Spec == Init /\ [][Next]_vars
Fair ==
  /\ Spec
  /\ WF_vars(Resize) /\ WF_vars(Question) /\ WF_vars(QuestionOfEmpty) /\ WF_vars(Remove) /\ WF_vars(Rebalance) /\ WF_vars(Complete)
  /\ \A m \in Members :
       /\ WF_vars(Join(m)) /\ WF_vars(Sync(m)) /\ WF_vars(Poll(m)) /\ WF_vars(Silence(m)) /\ WF_vars(LookAtSurvivor(m))
       /\ \A p \in Parts :
            /\ WF_vars(Want(m, p)) /\ WF_vars(Report(m, p)) /\ WF_vars(LoadAssigned(m, p)) /\ WF_vars(LoadCalled(m, p))
            /\ WF_vars(LoadReturned(m, p)) /\ WF_vars(Skip(m, p)) /\ WF_vars(Deliver(m, p)) /\ WF_vars(Flush(m, p)) /\ WF_vars(Commit(m, p))
            /\ p # 0 => WF_vars(LookAtChild(m, p))

-----------------------------------------------------------------------------
(* Properties *)

\* Older delivered -> its flush returned -> the newer one's load called and returned -> newer delivered.
Promise == broken = ""
\* No partition is removed before its owner has flushed it.
FlushedFirst == \A life \in 1..Topic[now].lives : life # Topic[now].life => flushed[life] = Cardinality(Of(life, Records))
\* In the end every marked partition is removed and all records are delivered.
AllRemoved == <>[](now = Len(Topic) /\ \A r \in Records : r \in delivered)
=============================================================================
