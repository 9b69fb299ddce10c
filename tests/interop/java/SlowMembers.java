import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Kafka's own Java consumer: {@code java SlowMembers BOOTSTRAP TOPIC GROUP:RESET[,GROUP:RESET...]}, see
 * {@code tests/interop/slow_members.py}. It commits in {@code poll}, what earlier calls returned.
 */
public class SlowMembers {
    static final Set<String> ended = new HashSet<>();
    static boolean stopped = false;

    static void read() {
        try (BufferedReader input = new BufferedReader(new InputStreamReader(System.in))) {
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                synchronized (ended) {
                    ended.add(line);
                    ended.notifyAll();
                }
            }
        } catch (IOException error) {
            // as the end of the input
        }
        synchronized (ended) {
            stopped = true;
            ended.notifyAll();
        }
    }

    static boolean isStopped() {
        synchronized (ended) {
            return stopped;
        }
    }

    static synchronized void say(String fields) {
        System.out.println(fields);
        System.out.flush();
    }

    static void process(int member, ConsumerRecord<String, String> record) throws InterruptedException {
        say("{\"m\": " + member + ", \"p\": " + record.partition() + ", \"k\": \"" + record.key() + "\", \"n\": "
                + record.value() + "}");
        String end = member + " " + record.partition();
        synchronized (ended) {
            while (!stopped && !ended.remove(end)) {
                ended.wait();
            }
        }
    }

    static void run(int member, String bootstrap, String topic, String group, String reset) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", group);
        settings.put("auto.offset.reset", reset);
        settings.put("session.timeout.ms", "6000");
        settings.put("heartbeat.interval.ms", "500");
        settings.put("auto.commit.interval.ms", "200");
        settings.put("metadata.max.age.ms", "1000");
        settings.put("max.poll.records", "1");
        StringDeserializer text = new StringDeserializer();
        Set<Integer> held = new TreeSet<>();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings, text, text)) {
            consumer.subscribe(List.of(topic), new ConsumerRebalanceListener() {
                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> taken) {
                    taken.forEach(partition -> held.remove(partition.partition()));
                    say("{\"m\": " + member + ", \"assigned\": " + held + "}");
                }

                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> added) {
                    added.forEach(partition -> held.add(partition.partition()));
                    say("{\"m\": " + member + ", \"assigned\": " + held + "}");
                }
            });
            while (!isStopped()) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) {
                    process(member, record);
                }
            }
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    public static void main(String[] arguments) throws InterruptedException {
        Thread input = new Thread(SlowMembers::read);
        input.setDaemon(true);
        input.start();
        List<Thread> members = new ArrayList<>();
        for (String group : arguments[2].split(",")) {
            int member = members.size();
            String[] parts = group.split(":");
            members.add(new Thread(() -> run(member, arguments[0], arguments[1], parts[0], parts[1])));
        }
        members.forEach(Thread::start);
        for (Thread member : members) {
            member.join();
        }
    }
}
