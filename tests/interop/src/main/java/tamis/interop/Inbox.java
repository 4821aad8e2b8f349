package tamis.interop;

import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.List;

/** Rows in order of arrival; readers may wait for a number of them. */
final class Inbox {
    private final List<JSONObject> rows = new ArrayList<>();

    synchronized void add(JSONObject row) {
        rows.add(row);
        notifyAll();
    }

    /** All rows so far, as soon as they are `count`, at the latest after `seconds`. */
    synchronized List<JSONObject> await(JSONObject request) throws InterruptedException {
        long deadline = System.nanoTime() + (long) (request.getDoubleValue("seconds") * 1e9);
        while (rows.size() < request.getIntValue("count")) {
            long left = (deadline - System.nanoTime()) / 1_000_000;
            if (left <= 0) {
                break;
            }
            wait(left);
        }
        return new ArrayList<>(rows);
    }
}
