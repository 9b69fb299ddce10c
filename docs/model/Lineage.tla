------------------------------ MODULE Lineage -------------------------------
(***************************************************************************)
(* One topic grows and shrinks by one rule. Each partition has a lineage:  *)
(* entries <<epoch, q, f>>. Its records from leader epoch `epoch` on are   *)
(* read after q is read up to the end of q's leader epoch f. A marked      *)
(* partition may be counted again before it is removed: it is revived.     *)
(* Every write, request and response is a separate step, and a crash may   *)
(* come between any two. README.md lists the omissions.                    *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
  Initial,    \* initial_partition_count
  Ids,        \* the largest number of partitions
  Start,      \* the count at the beginning
  Plan,       \* the counts that are asked for, in this order
  Keys,       \* keys, each given by its hash
  Records,    \* records per key
  Faults,     \* how many faults of each kind: [election, unclean, tail, controller, reader, lost, late, expire, cancel, marker]
  Losses,     \* the kinds of a "lost" produce request: "request", "answer", "delay"
  History,    \* producers may have metadata of any age, not only the newest
  Old,        \* the age of the 25301 answers that readers get: "new", "whole" (one old snapshot), "own" (new for the reader's
              \* partition, old for the others), "each" (another age for each partition)
  Stay,       \* no partition is removed
  Room,       \* how many entries a state znode has room for
  Brisk,      \* for longer plans: a leader applies a request and answers in the step that changes its epoch, and partitions
              \* between which no key of the model moves change at once
  Off         \* the rules that are switched off

VARIABLES
  topic,      \* topic znode: count, the count before (prev), layout version
  part,       \* partition znodes, and for each number the last epoch of a removed partition (gone)
  answered,   \* the controller's memory: partitions whose leader has answered the stored pair
  host,       \* the leader's replica of each partition
  underway,   \* controller requests that may still arrive
  asked,      \* the number of resizes of the plan that were asked for
  producer, strays, accepted,
  reader, delivered, flushed, broken,
  seen, maps, \* metadata and partition znodes of the past
  left        \* faults that may still happen

clients == <<producer, strays, accepted, reader, delivered, flushed, broken>>
past == <<seen, maps>>
vars == <<topic, part, answered, host, underway, asked, clients, past, left>>

Rule(name) == name \notin Off
Parts == 0..(Ids - 1)
Largest(S) == CHOOSE x \in S : \A y \in S : y <= x
Smallest(S) == CHOOSE x \in S : \A y \in S : x <= y
Most(S) == IF S = {} THEN -1 ELSE Largest(S)

-----------------------------------------------------------------------------
(* Placement: linear hashing, and the tree of partitions that it defines *)

Base(count) == CHOOSE m \in {Initial * 2^l : l \in 0..4} : m <= count /\ count < 2 * m
Place(hash, count) ==
  IF hash % Base(count) < count - Base(count) THEN hash % (2 * Base(count)) ELSE hash % Base(count)
RECURSIVE Ancestors(_)
Ancestors(p) == IF p < Initial THEN {} ELSE {p - Base(p)} \cup Ancestors(p - Base(p))
AncestorBelow(p, count) == Largest({a \in Ancestors(p) : a < count})

ASSUME \A hash \in 0..15 : \A small \in Initial..Ids : \A large \in small..Ids :
         LET from == Place(hash, small)  to == Place(hash, large) IN
         to # from => to >= small /\ AncestorBelow(to, small) = from

-----------------------------------------------------------------------------
(* Layouts, znodes, losers and gainers *)

Now == <<topic.count, topic.version>>
Same(a, b) == a[1] = b[1] /\ (Rule("layout_version") => a[2] = b[2])

\* <<from, to>> of the last resize, from the two counts of the topic znode alone.
Moves ==
  IF topic.count > topic.prev THEN {<<AncestorBelow(p, topic.prev), p>> : p \in topic.prev..(topic.count - 1)}
  ELSE {<<p, AncestorBelow(p, topic.count)>> : p \in topic.count..(topic.prev - 1)}
Losers == {m[1] : m \in Moves}
Gainers == {m[2] : m \in Moves}
LosersTo(p) == {m[1] : m \in {x \in Moves : x[2] = p}}
Concerned == 0..(topic.count - 1) \cup Losers

Exists(p) == part[p].stage # "absent"
Led(p) == part[p].stage \in {"led", "leaving"}
Has(p) == part[p].layout = Now
Marked == {p \in Parts : p >= topic.count /\ Led(p)}
Settled == (\A p \in 0..(topic.count - 1) : Has(p)) /\ (\A p \in Losers : Exists(p) => Has(p))

\* One snapshot for producers. It has the new layout from the write of the goal on, which is the earliest possible moment.
\* It has each partition's incarnation, or 0 while the partition has no leader: before its creation, and during its removal.
IsShown(p) == part[p].stage = "led" \/ (~Rule("leaving_is_hidden") /\ part[p].stage = "leaving") \/ ~Rule("led_only")
Newest == [layout |-> Now, incarnation |-> [p \in Parts |-> IF IsShown(p) THEN part[p].incarnation ELSE 0]]
Show == seen' = IF History THEN seen \cup {Newest'} ELSE {Newest'}
Facts(z) == [epoch |-> z.epoch, lineage |-> z.lineage, there |-> z.stage # "absent", gone |-> z.gone, floor |-> z.floor]
Known == [p \in Parts |-> Facts(part[p])]
Remember == maps' = IF Old = "new" THEN {} ELSE maps \cup {Known'}
Wrote == Show /\ Remember

NoBatch == [part |-> -1, layout |-> <<0, 0>>, incarnation |-> 0]
LedIn(led, epoch, layout) == IF Faults.tail > 0 THEN led \cup {<<epoch, layout>>} ELSE {}
NoHost == [incarnation |-> 0, epoch |-> -1, layout |-> <<0, 0>>, base |-> 0, start |-> 0, log |-> <<>>,
           markers |-> 0, removed |-> <<0, -1>>, led |-> {}, followed |-> -1]
NotLoading == [limit |-> -1, floor |-> -1, flushed |-> {}]
\* A reader. at, done: delivered and committed offset. limit, floor, gains: the epoch up to which the gate is open, the floor, and
\* the known entries. covers, spared, loaded: limit, floor and flushed records at the call of the last load that returned.
\* loading: the load that is running.
Fresh == [at |-> 0, done |-> 0, limit |-> -1, floor |-> -1, gains |-> {},
          covers |-> -1, spared |-> -1, loaded |-> {}, loading |-> NotLoading]

Init ==
  /\ topic = [count |-> Start, prev |-> Start, version |-> 0]
  /\ part = [p \in Parts |->
       [stage |-> IF p < Start THEN "led" ELSE "absent", epoch |-> IF p < Start THEN 1 ELSE -1,
        layout |-> IF p < Start THEN <<Start, 0>> ELSE <<-1, -1>>, last |-> -1, lineage |-> {}, floor |-> -1,
        incarnation |-> IF p < Start THEN 1 ELSE 0, base |-> 0, gone |-> -1]]
  /\ answered = 0..(Start - 1)
  /\ host = [p \in Parts |-> IF p < Start
       THEN [NoHost EXCEPT !.incarnation = 1, !.epoch = 1, !.layout = <<Start, 0>>, !.led = LedIn({}, 1, <<Start, 0>>)]
       ELSE NoHost]
  /\ underway = {} /\ asked = 0
  /\ producer = [k \in Keys |-> [next |-> 1, batch |-> NoBatch, version |-> 0]]
  /\ strays = {} /\ accepted = {}
  /\ reader = [p \in Parts |-> Fresh]
  /\ delivered = {} /\ flushed = {} /\ broken = ""
  /\ seen = {Newest} /\ maps = IF Old = "new" THEN {} ELSE {Known}
  /\ left = Faults

-----------------------------------------------------------------------------
(* The controller: a resize is one write of the goal, then losers, then gainers *)

\* A removed partition need not be named any more. The floor records that it was named.
Over(x) == part[x[2]].gone >= x[3]
Kept(lineage) == {x \in lineage : ~Over(x)}
EntriesAfter(p, losers) == Cardinality(Kept(part[p].lineage)) + Cardinality(losers)
Fits(count) == \A p \in 0..(count - 1) :
  LET losers == IF p < topic.count THEN {q \in count..(topic.count - 1) : AncestorBelow(q, count) = p}
                ELSE {AncestorBelow(p, topic.count)} IN
  Exists(p) => EntriesAfter(p, losers) <= Room

Ask ==
  /\ asked < Len(Plan)
  /\ Rule("one_resize") => Settled
  \* or a leader with the previous layout takes a batch whose refusal by a newer layout counted as final
  /\ Rule("all_answered") => \A p \in 0..(topic.count - 1) : p \in answered
  /\ LET count == Plan[asked + 1] IN
     /\ count # topic.count
     \* or its keys have no leader until the removal has ended
     /\ Rule("removal_first") => \A p \in 0..(count - 1) : part[p].stage # "leaving"
     \* if the gainers' lineages would not fit, the resize is refused before its goal is written
     /\ topic' = IF Rule("size_first") /\ ~Fits(count) THEN topic
                 ELSE [count |-> count, prev |-> topic.count, version |-> topic.version + 1]
  /\ asked' = asked + 1
  \* Without "last_with_bump" the epochs that the gainers will wait for are written here, before the bump.
  /\ part' = IF Rule("last_with_bump") THEN part ELSE [p \in Parts |-> [part[p] EXCEPT !.last = part[p].epoch]]
  /\ UNCHANGED <<answered, host, underway, clients, left>>
  /\ Wrote

\* Cancel a resize while no gainer is bumped: no partition has gained a key yet.
Cancel ==
  /\ left.cancel > 0 /\ left' = [left EXCEPT !.cancel = @ - 1]
  /\ topic.prev # topic.count
  /\ Rule("cancel_early") => \A p \in Gainers : ~Has(p)
  /\ topic' = [count |-> topic.prev, prev |-> topic.prev, version |-> topic.version + 1]
  /\ asked' = asked - 1
  /\ UNCHANGED <<part, answered, host, underway, clients>>
  /\ Wrote

\* Controller requests, and their effect on a replica.
LeadOrderOf(z, p) ==
  [what |-> "lead", part |-> p, incarnation |-> z.incarnation, epoch |-> z.epoch,
   layout |-> IF Rule("pair") THEN z.layout ELSE Now, base |-> z.base]
LeadOrder(p) == LeadOrderOf(part[p], p)
StopOrder(p) ==
  [what |-> "stop", part |-> p, incarnation |-> part[p].incarnation, epoch |-> part[p].epoch, layout |-> <<0, 0>>, base |-> 0]

Hosted(h) == h.incarnation > 0
EndOfLog(h) == h.base + Len(h.log) + h.markers
Before(o, deleted) == o.incarnation < deleted[1] \/ (o.incarnation = deleted[1] /\ o.epoch < deleted[2])
Obey(h, o) ==
  IF o.what = "lead"
  THEN IF \/ o.incarnation < h.incarnation
          \/ Rule("remember_removed") /\ Before(o, h.removed)
          \/ Rule("order_epoch") /\ Hosted(h) /\ o.incarnation = h.incarnation /\ o.epoch < h.epoch
       THEN h
       ELSE IF h.incarnation = o.incarnation
       THEN [h EXCEPT !.epoch = o.epoch, !.layout = o.layout, !.led = LedIn(@, o.epoch, o.layout)]
       ELSE [h EXCEPT !.incarnation = o.incarnation, !.epoch = o.epoch, !.layout = o.layout, !.log = <<>>,
                      !.markers = 0, !.base = o.base, !.start = o.base, !.led = LedIn({}, o.epoch, o.layout), !.followed = -1]
  ELSE IF o.incarnation # h.incarnation \/ o.epoch < h.epoch THEN h
       ELSE [NoHost EXCEPT !.removed = <<o.incarnation, o.epoch>>, !.base = EndOfLog(h)]    \* its answer has the log end
Obeyed(o) == [host EXCEPT ![o.part] = Obey(@, o)]

Inform(p) ==
  IF Brisk THEN host' = Obeyed(LeadOrderOf(part'[p], p)) /\ answered' = answered \cup {p}
  ELSE answered' = answered \ {p} /\ UNCHANGED host

LosersAreDone(p) == \A l \in LosersTo(p) :
  /\ Has(l) \/ ~Rule("stored_losers")
  \* An election means that a registration has expired; without "only_answers" this counts as an answer.
  /\ l \in answered \/ ~Rule("losers_first") \/ (~Rule("only_answers") /\ left.election < Faults.election)
LastOf(l) == IF Rule("stored_losers") THEN part[l].last ELSE part[l].epoch
FloorOf(p) == IF Rule("floor") THEN Most({part[p].floor} \cup {x[1] : x \in {y \in part[p].lineage : Over(y)}}) ELSE -1
Pruned(p) == [part[p] EXCEPT !.lineage = Kept(@), !.floor = FloorOf(p)]

Entry(p, epoch) ==
  IF Rule("revived_waits") \/ ~Led(p) \/ p \notin (topic.prev..(topic.count - 1))
  THEN {<<epoch, l, LastOf(l)>> : l \in LosersTo(p)} ELSE {}

\* ZooKeeper refuses a znode that is too large.
CanBump(p) == /\ p \in Concerned /\ part[p].stage = "led" /\ ~Has(p) /\ LosersAreDone(p)
              /\ EntriesAfter(p, LosersTo(p)) <= Room
CanCreate(p) == p \in Gainers /\ part[p].stage = "absent" /\ p < topic.count /\ LosersAreDone(p)

Bump(p) ==
  /\ CanBump(p)
  /\ LET z == Pruned(p) IN
     part' = [part EXCEPT ![p] = [z EXCEPT !.epoch = @ + 1, !.layout = Now,
                !.last = IF Rule("last_with_bump") THEN z.epoch ELSE @,
                !.lineage = @ \cup (IF Rule("entry_with_bump") THEN Entry(p, z.epoch + 1) ELSE {})]]
  /\ Inform(p)
  /\ UNCHANGED <<topic, underway, asked, clients, left>>
  /\ Wrote
\* Without "entry_with_bump" the entry is written after the bump, in a separate write.
AddEntry(p) ==
  /\ ~Rule("entry_with_bump") /\ p \in Concerned /\ part[p].stage = "led" /\ Has(p)
  /\ LosersTo(p) # {} /\ ~(\E x \in part[p].lineage : x[1] = part[p].epoch)
  /\ part' = [part EXCEPT ![p].lineage = @ \cup Entry(p, part[p].epoch)]
  /\ UNCHANGED <<topic, answered, host, underway, asked, clients, left>>
  /\ Wrote

\* A new partition: its state and its first leader in one write.
Create(p) ==
  /\ CanCreate(p)
  /\ part' = [part EXCEPT ![p].stage = "led", ![p].epoch = @ + 1, ![p].layout = Now, ![p].incarnation = @ + 1,
                          ![p].lineage = Entry(p, part[p].epoch + 1)]
  /\ Inform(p)
  /\ UNCHANGED <<topic, underway, asked, clients, left>>
  /\ Wrote

-----------------------------------------------------------------------------
(* The highest partition is removed when it is marked and drained *)

End(p) == EndOfLog(host[p])
Homes == {Place(k, count) : k \in Keys, count \in Initial..Ids}
\* The offset up to which the group has processed p. For records that retention removed, the owner's report counts.
Position(p) ==
  IF Rule("owner_counts") THEN (IF Rule("commit_first") THEN reader[p].done ELSE reader[p].at)
  ELSE Largest({reader[p].done, host[p].start})
Drained(p) ==
  /\ p \in answered /\ host[p].layout[1] <= p         \* its leader has answered that it takes no records
  /\ Position(p) >= End(p)

Leave(p) ==
  /\ ~Stay /\ p \in Marked /\ part[p].stage = "led"
  /\ \A q \in Parts : q > p => ~Exists(q)
  /\ Rule("removal_waits") => Settled
  /\ Drained(p)
  /\ part' = [part EXCEPT ![p].stage = "leaving", ![p].base = IF Rule("offsets_go_on") THEN End(p) ELSE 0]
  /\ UNCHANGED <<topic, answered, host, underway, asked, clients, left>>
  /\ Wrote

Blank(z) == [z EXCEPT !.stage = "absent", !.layout = <<-1, -1>>, !.last = -1, !.lineage = {}, !.floor = -1, !.gone = z.epoch]
\* The first offset of the next partition of this number. The replica that deleted the log has reported its end.
NextBase(p) ==
  IF Rule("offsets_go_on") /\ Rule("end_at_deletion") THEN Largest({part[p].base, host[p].base}) ELSE part[p].base
Forget(p) ==
  /\ part[p].stage = "leaving" /\ host[p].incarnation # part[p].incarnation
  /\ part' = [part EXCEPT ![p] = [Blank(@) EXCEPT !.base = NextBase(p)]]
  /\ answered' = answered \ {p}
  /\ UNCHANGED <<topic, host, underway, asked, clients, left>>
  /\ Wrote
\* Without "leaving_is_final" a grow revives a partition that is being removed.
Revive(p) ==
  /\ ~Rule("leaving_is_final") /\ part[p].stage = "leaving" /\ p < topic.count
  /\ part' = [part EXCEPT ![p].stage = "led"]
  /\ UNCHANGED <<topic, answered, host, underway, asked, clients, left>>
  /\ Wrote

-----------------------------------------------------------------------------
(* Controller requests: LeaderAndIsr and StopReplica. A sent request may arrive at any later time, or never. *)

Late(o) ==
  /\ left.late > 0 /\ o \notin underway
  /\ underway' = underway \cup {o} /\ left' = [left EXCEPT !.late = @ - 1]
  /\ UNCHANGED <<topic, part, answered, host, asked, clients, past>>

Order(p) ==
  /\ p \notin answered /\ part[p].stage = "led"
  /\ \/ Late(LeadOrder(p))
     \/ /\ host' = Obeyed(LeadOrder(p)) /\ answered' = answered \cup {p}
        /\ UNCHANGED <<topic, part, underway, asked, clients, past, left>>

Stop(p) ==
  /\ part[p].stage = "leaving" /\ host[p].incarnation = part[p].incarnation
  /\ \/ Late(StopOrder(p))
     \/ /\ host' = Obeyed(StopOrder(p)) /\ answered' = answered \ {p}
        /\ UNCHANGED <<topic, part, underway, asked, clients, past, left>>

Arrive == \E o \in underway :
  /\ underway' = underway \ {o} /\ host' = Obeyed(o)
  /\ UNCHANGED <<topic, part, answered, asked, clients, past, left>>

-----------------------------------------------------------------------------
(* Faults *)

NewController ==
  /\ left.controller > 0 /\ left' = [left EXCEPT !.controller = @ - 1]
  /\ answered' = {}
  /\ UNCHANGED <<topic, part, host, underway, asked, clients, past>>

\* Until the request arrives, the old leader continues to serve, with or without a registration.
Election(p) ==
  /\ left.election > 0 /\ left' = [left EXCEPT !.election = @ - 1]
  /\ part[p].stage = "led"
  /\ part' = [part EXCEPT ![p] = [Pruned(p) EXCEPT !.epoch = @ + 1]]
  /\ answered' = answered \ {p}
  /\ UNCHANGED <<topic, host, underway, asked, clients>>
  /\ Wrote

\* The new leader lacks the last record.
UncleanElection(p) ==
  /\ left.unclean > 0 /\ left' = [left EXCEPT !.unclean = @ - 1]
  /\ part[p].stage = "led" /\ host[p].incarnation = part[p].incarnation /\ host[p].log # <<>>
  /\ LET end == End(p) - 1 IN
     /\ part' = [part EXCEPT ![p].epoch = @ + 1]
     /\ host' = [host EXCEPT ![p].log = SubSeq(@, 1, Len(@) - 1), ![p].epoch = part'[p].epoch, ![p].layout = part[p].layout]
     /\ reader' = [reader EXCEPT ![p].at = Smallest({@, end}), ![p].done = Smallest({@, end})]
  /\ answered' = answered \ {p}
  /\ UNCHANGED <<topic, underway, asked, producer, strays, accepted, delivered, flushed, broken>>
  /\ Wrote

\* The owner of p dies, and the next owner continues from the commit.
ReaderCrash(p) ==
  /\ left.reader > 0 /\ left' = [left EXCEPT !.reader = @ - 1]
  /\ reader[p].limit # -1 \/ reader[p].at # reader[p].done
  /\ reader' = [reader EXCEPT ![p] = [Fresh EXCEPT !.at = reader[p].done, !.done = reader[p].done]]
  /\ UNCHANGED <<topic, part, answered, host, underway, asked, producer, strays, accepted, delivered, flushed, broken, past>>

\* A closed partition still takes a transaction marker. The marker has an offset and is not delivered.
Marker(p) ==
  /\ left.marker > 0 /\ left' = [left EXCEPT !.marker = @ - 1]
  /\ part[p].stage = "leaving" /\ host[p].incarnation = part[p].incarnation
  /\ host' = [host EXCEPT ![p].markers = @ + 1]
  /\ UNCHANGED <<topic, part, answered, underway, asked, clients, past>>

\* Retention removes all records, read or not.
Expire(p) ==
  /\ left.expire > 0 /\ left' = [left EXCEPT !.expire = @ - 1]
  /\ Hosted(host[p]) /\ host[p].start < End(p)
  /\ host' = [host EXCEPT ![p].start = End(p)]
  /\ UNCHANGED <<topic, part, answered, underway, asked, clients, past>>

-----------------------------------------------------------------------------
(* The producer, as in module Resize: it waits for the result of at most one record per key *)

servers == <<topic, part, answered, underway, asked, past>>
readers == <<reader, delivered, flushed, broken>>
AllFollow(ps) ==
  IF Faults.tail > 0 THEN [p \in Parts |-> IF p \in ps THEN [host[p] EXCEPT !.followed = host[p].epoch] ELSE host[p]] ELSE host
Duplicate(k, s, p) == \E i \in DOMAIN host[p].log : host[p].log[i].key = k /\ host[p].log[i].number = s
Appended(k, s, p, layout) ==
  [host EXCEPT ![p].log = Append(@, [epoch |-> host[p].epoch, key |-> k, number |-> s, layout |-> layout])]
Takes(p, layout) == Hosted(host[p]) /\ Same(host[p].layout, layout) /\ p < layout[1]
Version(m) == IF Rule("never_back") THEN m.layout[2] ELSE 0
Resolved(k, s, version) == producer' = [producer EXCEPT ![k] = [next |-> s + 1, batch |-> NoBatch, version |-> version]]
Unresolved(k, s, p, m) ==
  producer' = [producer EXCEPT ![k] =
    [next |-> s, batch |-> [part |-> p, layout |-> m.layout, incarnation |-> m.incarnation[p]], version |-> Version(m)]]

Send(k) == \E m \in seen :
  LET s == producer[k].next  p == Place(k, m.layout[1]) IN
  /\ producer[k].batch = NoBatch /\ s <= Records /\ Version(m) >= producer[k].version
  /\ m.incarnation[p] > 0 \/ ~Rule("led_only")
  /\ \/ /\ Hosted(host[p]) /\ Duplicate(k, s, p)     \* it was refused, and a later copy was appended
        /\ Resolved(k, s, Version(m)) /\ accepted' = accepted \cup {<<k, s>>}
        /\ UNCHANGED <<host, strays, left>>
     \/ /\ Takes(p, m.layout) /\ ~Duplicate(k, s, p)
        /\ host' = Appended(k, s, p, m.layout)
        /\ Resolved(k, s, Version(m)) /\ accepted' = accepted \cup {<<k, s>>}
        /\ UNCHANGED <<strays, left>>
     \/ /\ left.lost > 0 /\ left' = [left EXCEPT !.lost = @ - 1]
        /\ Unresolved(k, s, p, m)
        /\ \/ /\ "answer" \in Losses /\ Takes(p, m.layout) /\ ~Duplicate(k, s, p)
              /\ host' = Appended(k, s, p, m.layout) /\ UNCHANGED strays
           \/ "request" \in Losses /\ UNCHANGED <<host, strays>>
           \/ /\ "delay" \in Losses /\ UNCHANGED host
              /\ strays' = strays \cup {[key |-> k, number |-> s, part |-> p, layout |-> m.layout]}
        /\ UNCHANGED accepted
  /\ UNCHANGED <<servers, readers>>

Retry(k) ==
  LET s == producer[k].next
      batch == producer[k].batch
      p == batch.part
      gone == part[p].stage = "absent" \/ (Rule("fail_gone") /\ part[p].incarnation # batch.incarnation)
      here == Hosted(host[p])
      known == here /\ Duplicate(k, s, p)
  IN
  /\ batch # NoBatch
  /\ \/ /\ ~gone /\ known
        /\ Resolved(k, s, producer[k].version) /\ accepted' = accepted \cup {<<k, s>>} /\ UNCHANGED host
     \/ /\ ~gone /\ ~known /\ Takes(p, batch.layout)
        /\ host' = Appended(k, s, p, batch.layout)
        /\ Resolved(k, s, producer[k].version) /\ accepted' = accepted \cup {<<k, s>>}
     \/ /\ ~gone /\ here /\ ~known /\ ~Takes(p, batch.layout)
        /\ \E m \in seen : m.layout[2] > batch.layout[2]
        /\ producer' = [producer EXCEPT ![k].batch = NoBatch,
                          ![k].version = IF Rule("never_back") THEN batch.layout[2] + 1 ELSE @]
        /\ host' = AllFollow({p})
        /\ UNCHANGED accepted
     \/ /\ gone                                              \* the result stays unknown: the record fails
        /\ producer' = [producer EXCEPT ![k].next = IF Rule("fail_gone") THEN s + 1 ELSE s, ![k].batch = NoBatch]
        /\ UNCHANGED <<host, accepted>>
  /\ UNCHANGED <<servers, strays, readers, left>>

StrayArrives == \E r \in strays :
  /\ strays' = strays \ {r}
  /\ host' = IF Takes(r.part, r.layout) /\ ~Duplicate(r.key, r.number, r.part)
             THEN Appended(r.key, r.number, r.part, r.layout) ELSE host
  /\ UNCHANGED <<servers, producer, accepted, readers, left>>

\* A replica that led before, was cut off and stayed in the ISR leads again. It has a record that no other replica has, of the
\* last epoch in which all in-sync replicas are known to have followed, or later. Uncommitted records of later leaders are gone.
TailElection(p) ==
  /\ left.tail > 0 /\ left' = [left EXCEPT !.tail = @ - 1]
  /\ part[p].stage = "led" /\ host[p].incarnation = part[p].incarnation
  /\ part' = [part EXCEPT ![p].epoch = @ + 1]
  /\ \E r \in strays, led \in host[p].led :
       LET epoch == led[1]
           kept == SelectSeq(host[p].log, LAMBDA a : a.epoch <= epoch)
           gone == {host[p].log[i] : i \in (Len(kept) + 1)..Len(host[p].log)} IN
       /\ r.part = p /\ Same(r.layout, led[2]) /\ epoch >= host[p].followed
       /\ \A i \in DOMAIN kept : kept[i].key # r.key \/ kept[i].number # r.number
       /\ \A a \in gone : <<a.key, a.number>> \notin accepted
       /\ reader[p].at <= host[p].base + Len(kept)
       /\ host' = [host EXCEPT ![p].log = Append(kept, [epoch |-> epoch, key |-> r.key, number |-> r.number, layout |-> r.layout]),
                               ![p].epoch = part'[p].epoch, ![p].layout = part[p].layout,
                               ![p].led = LedIn(@, part'[p].epoch, part[p].layout)]
       /\ strays' = strays \ {r}
  /\ answered' = answered \ {p}
  /\ UNCHANGED <<topic, underway, asked, producer, accepted, readers>>
  /\ Wrote

-----------------------------------------------------------------------------
(* The readers: in the worst case every partition has another owner *)

\* y: the partition znodes that the answering broker of 25301 has. The end of an epoch comes from the leader.
EndOf(q, f) == host[q].base + Cardinality({i \in DOMAIN host[q].log : host[q].log[i].epoch <= f})
RECURSIVE Satisfied(_, _, _)
Satisfied(y, q, f) ==
  IF IF Rule("gone_is_read") THEN y[q].gone >= f ELSE ~y[q].there THEN TRUE     \* the partition that had this epoch is gone
  ELSE /\ y[q].there /\ Hosted(host[q])
       /\ y[q].epoch >= f \/ ~Rule("fresh_enough")
       /\ host[q].epoch > f \/ ~Rule("finished_epoch")
       /\ Position(q) >= EndOf(q, f)
       /\ Rule("recursion") => \A x \in y[q].lineage : x[1] <= f => Satisfied(y, x[2], x[3])
Limit(y, p) ==
  LET held == {x[1] : x \in {z \in y[p].lineage : Rule("lineage") /\ ~Satisfied(y, z[2], z[3])}} IN
  IF ~y[p].there THEN -1
  ELSE IF held # {} THEN Smallest(held) - 1
  ELSE IF Rule("batch_epoch") THEN y[p].epoch ELSE 99
\* The partitions whose leaders are asked for the end of an epoch. A leader answers after its replicas have followed.
Asked(y) == {x[2] : x \in UNION {y[p].lineage : p \in Parts}}
Views(own) == CASE Old = "new" -> {Known} [] Old = "whole" -> maps [] Old = "own" -> {[y EXCEPT ![own] = Known[own]] : y \in maps}
                [] OTHER -> {[p \in Parts |-> m[p][p]] : m \in [Parts -> maps]}

\* A look sets the limit, and finds the epochs from which on the partition has keys of other partitions.
Look(p) == \E y \in Views(p) :
  LET limit == Largest({reader[p].limit, Limit(y, p)})
      floor == Largest({reader[p].floor, y[p].floor})
      gains == {e \in reader[p].gains \cup {x[1] : x \in y[p].lineage} : e > reader[p].covers} IN
  /\ p \in Homes /\ (limit > reader[p].limit \/ floor > reader[p].floor)
  /\ reader' = [reader EXCEPT ![p].limit = limit, ![p].floor = floor, ![p].gains = gains]
  /\ host' = IF Rule("followed_end") THEN AllFollow(Asked(y)) ELSE host
  /\ UNCHANGED <<servers, producer, strays, accepted, delivered, flushed, broken, left>>

Holes(p) == {host[p].start, host[p].base}
Next1(p) == Largest({reader[p].at} \cup Holes(p)) + 1      \* the offset after the next record
HasNext(p) == Hosted(host[p]) /\ Next1(p) <= host[p].base + Len(host[p].log)
NextEpoch(p) == host[p].log[Next1(p) - host[p].base].epoch
Opens(p, limit) == HasNext(p) /\ NextEpoch(p) <= limit

\* Whether a load is due before the next record: the record is the first one above an entry, or entries were pruned unseen.
LoadIsDue(p) ==
  LET r == reader[p]
      unseen == IF ~Rule("floor_at_once") THEN r.covers < r.floor /\ r.floor <= NextEpoch(p)
                ELSE r.floor > Largest({r.covers, r.spared}) IN
  unseen \/ \E e \in r.gains : r.covers < e /\ e <= NextEpoch(p)
\* The load reads the state that was flushed at its call, and returns at any later time.
Load(p) ==
  /\ Opens(p, reader[p].limit) /\ reader[p].loading = NotLoading /\ LoadIsDue(p)
  /\ reader' = [reader EXCEPT ![p].loading = [limit |-> reader[p].limit, floor |-> reader[p].floor, flushed |-> flushed]]
  /\ UNCHANGED <<servers, host, producer, strays, accepted, delivered, flushed, broken, left>>
Loaded(p) ==
  LET r == reader[p]
      limit == IF Rule("load_at_call") THEN r.loading.limit ELSE r.limit
      floor == IF Rule("load_at_call") THEN r.loading.floor ELSE r.floor IN
  /\ r.loading # NotLoading
  /\ reader' = [reader EXCEPT ![p].loading = NotLoading, ![p].covers = limit, ![p].spared = floor,
                              ![p].loaded = r.loading.flushed, ![p].gains = {e \in @ : e > limit}]
  /\ UNCHANGED <<servers, host, producer, strays, accepted, delivered, flushed, broken, left>>
MayDeliver(p, limit) == Opens(p, limit) /\ reader[p].loading = NotLoading /\ (Rule("load") => ~LoadIsDue(p))

Deliver(p) ==
  LET r == host[p].log[Next1(p) - host[p].base]
      here == <<p, host[p].incarnation>> IN
  /\ MayDeliver(p, reader[p].limit)
  /\ reader' = [reader EXCEPT ![p].at = Next1(p)]
  /\ delivered' = delivered \cup {<<r.key, r.number, p, host[p].incarnation>>}
  /\ broken' =
       IF \E q \in Parts \ {p} : \E j \in DOMAIN host[q].log :
            LET a == host[q].log[j] IN
            /\ a.key = r.key /\ a.number < r.number /\ host[q].base + j > reader[q].done
            /\ host[q].base + j > host[q].start
       THEN "an older record is not done yet"
       ELSE IF \E x \in delivered : x[1] = r.key /\ x[2] < r.number /\ <<x[3], x[4]>> # here /\ <<x[1], x[2]>> \notin flushed
       THEN "an older record is not flushed yet"
       ELSE IF \E x \in delivered : x[1] = r.key /\ x[2] > r.number /\ <<x[3], x[4]>> # here
       THEN "a newer record came before"
       ELSE IF \E x \in delivered : x[1] = r.key /\ x[2] < r.number /\ <<x[3], x[4]>> # here /\ <<x[1], x[2]>> \notin reader[p].loaded
       THEN "the load was called before the flush returned, or never"
       ELSE broken
  /\ UNCHANGED <<servers, host, producer, strays, accepted, flushed, left>>

\* A reader passes removed records, markers and offsets below the base, whether the gate is open or not.
Skip(p) ==
  /\ p \in Homes /\ Hosted(host[p])
  /\ LET next == IF HasNext(p) THEN Next1(p) - 1 ELSE End(p) IN
     /\ reader[p].at < next
     /\ Rule("holes_are_passed") \/ ~HasNext(p) \/ Opens(p, reader[p].limit)
     /\ reader' = [reader EXCEPT ![p].at = next]
  /\ UNCHANGED <<servers, host, producer, strays, accepted, delivered, flushed, broken, left>>

\* The flush callback has returned, and the offset is committed.
Commit(p) ==
  /\ reader[p].done < reader[p].at
  /\ reader' = [reader EXCEPT ![p].done = reader[p].at]
  /\ flushed' = flushed \cup {<<x[1], x[2]>> : x \in {d \in delivered : d[3] = p}}
  /\ UNCHANGED <<servers, host, producer, strays, accepted, delivered, broken, left>>

-----------------------------------------------------------------------------
Controller ==
  \/ Ask
  \/ \E p \in Parts : Bump(p) \/ AddEntry(p) \/ Create(p) \/ Leave(p) \/ Forget(p) \/ Revive(p) \/ Order(p) \/ Stop(p)
Clients ==
  \/ \E k \in Keys : Send(k) \/ Retry(k)
  \/ \E p \in Parts : Look(p) \/ Load(p) \/ Loaded(p) \/ Deliver(p) \/ Skip(p) \/ Commit(p)
Bad ==
  \/ NewController \/ Arrive \/ StrayArrives \/ Cancel
  \/ \E p \in Parts : Election(p) \/ UncleanElection(p) \/ TailElection(p) \/ ReaderCrash(p) \/ Marker(p) \/ Expire(p)
\* With Brisk: partitions that no key of the model moves from or to change at once, the lowest first.
Quiet == {p \in Parts : p \notin Homes \/ p \notin Losers \cup Gainers}
Urgent == IF Brisk THEN {p \in Quiet : CanBump(p) \/ CanCreate(p)} ELSE {}
Next ==
  IF Urgent # {} THEN Bump(Smallest(Urgent)) \/ Create(Smallest(Urgent))
  ELSE Controller \/ Clients \/ Bad

Spec == Init /\ [][Next]_vars
Fair ==
  /\ Spec
  /\ WF_vars(Controller)
  /\ \A k \in Keys : WF_vars(Send(k)) /\ WF_vars(Retry(k))
  /\ \A p \in Parts : WF_vars(Look(p)) /\ WF_vars(Load(p)) /\ WF_vars(Loaded(p))
  /\ \A p \in Parts : WF_vars(Deliver(p)) /\ WF_vars(Skip(p)) /\ WF_vars(Commit(p))

-----------------------------------------------------------------------------
(* Properties *)

Promise == broken = ""
LogSorted == \A p \in Parts : \A i, j \in DOMAIN host[p].log :
  i < j /\ host[p].log[i].key = host[p].log[j].key => host[p].log[i].number < host[p].log[j].number
\* No record is in a partition that does not own its key in the record's epoch; an epoch has one layout.
Sealed == \A p \in Parts : \A i, j \in DOMAIN host[p].log :
  LET a == host[p].log[i]  b == host[p].log[j] IN
  Place(a.key, a.layout[1]) = p /\ (a.epoch = b.epoch => a.layout = b.layout)
WasDelivered(a) == \E x \in delivered : x[1] = a[1] /\ x[2] = a[2]
NoLoss == \A a \in accepted :
  \/ WasDelivered(a)
  \/ \E p \in Parts : /\ Led(p) /\ host[p].incarnation = part[p].incarnation
                      /\ \E i \in DOMAIN host[p].log : host[p].log[i].key = a[1] /\ host[p].log[i].number = a[2]
NoDuplicate ==
  /\ \A p, q \in Parts : \A i \in DOMAIN host[p].log, j \in DOMAIN host[q].log :
       LET a == host[p].log[i]  b == host[q].log[j] IN a.key = b.key /\ a.number = b.number => p = q /\ i = j
  /\ \A x, y \in delivered : x[1] = y[1] /\ x[2] = y[2] => x = y

PlanDone == asked = Len(Plan) /\ (topic.count = Plan[Len(Plan)] \/ ~Fits(Plan[Len(Plan)])) /\ Settled
         /\ (Stay \/ \A p \in Parts : Exists(p) <=> p < topic.count)
AllSent == \A k \in Keys : producer[k].next > Records /\ producer[k].batch = NoBatch
AllDelivered == \A a \in accepted : WasDelivered(a)
\* No step is possible, with the newest answers either. This is the end of a run, or a hang.
AtRest ==
  /\ \A p \in Parts : reader[p].at = reader[p].done
  /\ \A p \in Homes : ~Opens(p, Largest({reader[p].limit, Limit(Known, p)})) /\ ~ENABLED Skip(p)
  /\ \A k \in Keys : ~ENABLED Send(k) /\ ~ENABLED Retry(k)
  /\ ~ENABLED Controller
\* No counted partition is being removed: its keys would have no leader.
NoOutage == \A p \in 0..(topic.count - 1) : part[p].stage # "leaving"
AllRead == \A p \in Parts : part[p].stage = "led" => reader[p].at >= End(p)
NoHang == AtRest => PlanDone /\ AllSent /\ AllRead /\ (Faults.unclean + Faults.expire = 0 => AllDelivered)
Arrives == <>[](PlanDone /\ AllSent /\ (Faults.expire = 0 => AllDelivered))
=============================================================================
